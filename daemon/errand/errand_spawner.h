#ifndef HOIST_DAEMON_ERRAND_ERRAND_SPAWNER_H_
#define HOIST_DAEMON_ERRAND_ERRAND_SPAWNER_H_

#include <memory>

#include "absl/base/thread_annotations.h"
#include "absl/status/statusor.h"
#include "absl/synchronization/mutex.h"
#include "hoist/shared/unique_fd.h"

namespace hoistd {

// A process that runs errands, one at a time, until its line is closed.
struct ErrandProcess {
  hoist::UniqueFd line;
  hoist::UniqueFd pidfd;  // None where the kernel or a container has none.
};

// Makes the processes that run errands.
//
// They are forked by a small process that is forked before hoistd has threads,
// pools or descriptors: forking hoistd itself would copy its page tables and
// share its GPU's and clients' descriptors with what may hang for ever.
//
// Threads:  Start before there are any; Spawn from any thread.
// Owns:     the small process, which ends with this object or with hoistd, and
//           ignores the signals that ask hoistd to stop.
class ErrandSpawner {
 public:
  static absl::StatusOr<std::unique_ptr<ErrandSpawner>> Start();

  // ResourceExhausted, Unavailable: the system cannot fork now.
  absl::StatusOr<ErrandProcess> Spawn() ABSL_LOCKS_EXCLUDED(mu_);

 private:
  explicit ErrandSpawner(hoist::UniqueFd door) : door_(std::move(door)) {}

  absl::Mutex mu_;  // One asks at a time; the answer takes a fork.
  const hoist::UniqueFd door_;
};

}  // namespace hoistd

#endif  // HOIST_DAEMON_ERRAND_ERRAND_SPAWNER_H_
