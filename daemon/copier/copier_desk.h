// One device's copiers: where sessions open and close them.
#ifndef HOIST_DAEMON_COPIER_COPIER_DESK_H_
#define HOIST_DAEMON_COPIER_COPIER_DESK_H_

#include <cstdint>
#include <map>
#include <memory>
#include <vector>

#include "absl/base/thread_annotations.h"
#include "absl/functional/any_invocable.h"
#include "absl/status/statusor.h"
#include "absl/synchronization/mutex.h"
#include "daemon/base/threads.h"
#include "daemon/copier/copier.h"
#include "daemon/link/link.h"
#include "daemon/plan/link_share.h"
#include "daemon/terms/ids.h"

namespace hoistd {

// Threads:  thread-safe; calls return at once. What they do is done on the
//           link's thread, in order; callbacks run there.
// Owns:     the copiers. Borrows the link, which outlives it.
// Bounds:   who opens them bounds their number.
class CopierDesk {
 public:
  struct Totals {
    uint64_t copied_bytes = 0;  // Host to device, granted and done.
    uint64_t read_bytes = 0;    // Device to host.
  };

  // `threads`: the link's; nullptr: the system's.
  explicit CopierDesk(Link& link, Threads* threads = nullptr);
  CopierDesk(const CopierDesk&) = delete;
  CopierDesk& operator=(const CopierDesk&) = delete;
  // Closes what is open.
  ~CopierDesk();

  // Errors: no memory, no descriptors; or the device's, which is broken.
  void Open(const CopierSpec& spec,
            absl::AnyInvocable<void(absl::StatusOr<CopierShare>)> done);
  // Lets its waits through. One that is not there is closed already.
  void Close(CopierId copier);
  void SetShare(CopierId copier, const ShareOptions& share);

  // Those that are open.
  std::vector<CopierStats> Stats() const ABSL_LOCKS_EXCLUDED(mu_);
  // Of all that there ever were.
  Totals AllTotals() const ABSL_LOCKS_EXCLUDED(mu_);

 private:
  struct Entry {
    std::unique_ptr<Copier> copier;
    ShareOptions share;
    bool closing = false;
    std::shared_ptr<void> waits = nullptr;  // Who waits until it is gone.
  };

  absl::StatusOr<CopierShare> OpenNow(const CopierSpec& spec)
      ABSL_LOCKS_EXCLUDED(mu_);
  void CloseNow(CopierId id) ABSL_LOCKS_EXCLUDED(mu_);
  void Gone(CopierId id) ABSL_LOCKS_EXCLUDED(mu_);

  Link& link_;
  Threads* const threads_;
  mutable absl::Mutex mu_;
  // Changed on the link's thread alone.
  std::map<CopierId, Entry> copiers_ ABSL_GUARDED_BY(mu_);
  Totals gone_ ABSL_GUARDED_BY(mu_);
};

}  // namespace hoistd

#endif  // HOIST_DAEMON_COPIER_COPIER_DESK_H_
