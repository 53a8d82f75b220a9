// One device's permits: where sessions open and close them.
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

// Threads:  thread-safe; calls return at once. What they do is done on the
//           link's thread, in order; callbacks run there.
// Owns:     the permits. Borrows the link, which outlives it.
// Bounds:   who opens them bounds their number.
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
  // Closes what is open.
  ~PermitDesk();

  // Errors: no memory, no descriptors; or the device's, which is broken.
  void Open(const PermitSpec& spec,
            absl::AnyInvocable<void(absl::StatusOr<PermitShare>)> done);
  // Lets its waits through. One that is not there is closed already.
  void Close(PermitId permit);
  void SetShare(PermitId permit, const ShareOptions& share);

  // Those that are open.
  std::vector<PermitStats> Stats() const ABSL_LOCKS_EXCLUDED(mu_);
  // Of all that there ever were.
  Totals AllTotals() const ABSL_LOCKS_EXCLUDED(mu_);

 private:
  struct Entry {
    std::unique_ptr<CopyPermit> permit;
    ShareOptions share;
    bool closing = false;
    std::shared_ptr<void> waits = nullptr;  // Who waits until it is gone.
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
