// One device's copy permits: sessions open and close them here.
#ifndef HOIST_DAEMON_PERMIT_PERMIT_DESK_H_
#define HOIST_DAEMON_PERMIT_PERMIT_DESK_H_

#include <cstdint>
#include <map>
#include <memory>
#include <vector>

#include "absl/base/thread_annotations.h"
#include "absl/functional/any_invocable.h"
#include "absl/status/statusor.h"
#include "absl/synchronization/mutex.h"
#include "daemon/base/threads.h"
#include "daemon/link/link.h"
#include "daemon/permit/copy_permit.h"
#include "daemon/plan/link_share.h"
#include "daemon/types/ids.h"

namespace hoistd {

// Threads:  thread-safe; calls return at once. Their work runs in order on the
//           link's thread, and so do callbacks.
// Owns:     the permits. Borrows the link, which outlives it.
// Bounds:   callers bound the number of permits.
class PermitDesk {
 public:
  struct Totals {
    uint64_t copied_bytes = 0;  // Host to device, granted and done.
    uint64_t read_bytes = 0;    // Device to host.
  };

  // `threads`: the link's; nullptr: the system's.
  explicit PermitDesk(Link& link, Threads* threads = nullptr);
  PermitDesk(const PermitDesk&) = delete;
  PermitDesk& operator=(const PermitDesk&) = delete;
  // Closes all open permits.
  ~PermitDesk();

  // Errors: no memory or descriptors; the error of a broken device.
  void Open(const PermitSpec& spec,
            absl::AnyInvocable<void(absl::StatusOr<PermitShare>)> done);
  // Lets its waits through. An unknown permit counts as closed.
  void Close(PermitId permit);
  void SetShare(PermitId permit, const ShareOptions& share);

  // Of open permits.
  std::vector<PermitStats> Stats() const ABSL_LOCKS_EXCLUDED(mu_);
  // Of all permits ever opened.
  Totals AllTotals() const ABSL_LOCKS_EXCLUDED(mu_);

 private:
  struct Entry {
    std::unique_ptr<CopyPermit> permit;
    ShareOptions share;
    bool closing = false;
    std::shared_ptr<void> waits = nullptr;  // Holders wait for its end.
  };

  absl::StatusOr<PermitShare> OpenNow(const PermitSpec& spec)
      ABSL_LOCKS_EXCLUDED(mu_);
  void CloseNow(PermitId id) ABSL_LOCKS_EXCLUDED(mu_);
  void Gone(PermitId id) ABSL_LOCKS_EXCLUDED(mu_);

  Link& link_;
  Threads* const threads_;
  mutable absl::Mutex mu_;
  // Changed on the link's thread alone.
  std::map<PermitId, Entry> permits_ ABSL_GUARDED_BY(mu_);
  Totals gone_ ABSL_GUARDED_BY(mu_);
};

}  // namespace hoistd

#endif  // HOIST_DAEMON_PERMIT_PERMIT_DESK_H_
