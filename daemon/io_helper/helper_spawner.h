#ifndef HOIST_DAEMON_IO_HELPER_HELPER_SPAWNER_H_
#define HOIST_DAEMON_IO_HELPER_HELPER_SPAWNER_H_

#include <memory>

#include "absl/base/thread_annotations.h"
#include "absl/status/statusor.h"
#include "absl/synchronization/mutex.h"
#include "hoist/shared/unique_fd.h"

namespace hoistd {

// An I/O helper: runs calls, one at a time, until its line is closed.
struct HelperProcess {
  hoist::UniqueFd line;
  hoist::UniqueFd pidfd;  // Invalid where the kernel or container has none.
};

// Makes I/O helpers.
//
// A small process forks them. It is forked before hoistd has threads, pools or
// descriptors: a fork of hoistd itself would copy its page tables, and share
// descriptors of GPU and clients with a process that may hang for ever.
//
// Threads:  Start before there are any; Spawn from any thread.
// Owns:     the small process. It ends with this object or with hoistd, and has
//           hoistd's signal mask.
class HelperSpawner {
 public:
  static absl::StatusOr<std::unique_ptr<HelperSpawner>> Start();

  // ResourceExhausted, Unavailable: the system cannot fork now.
  absl::StatusOr<HelperProcess> Spawn() ABSL_LOCKS_EXCLUDED(mu_);

 private:
  explicit HelperSpawner(hoist::UniqueFd door) : door_(std::move(door)) {}

  absl::Mutex mu_;  // One request at a time; each takes a fork.
  const hoist::UniqueFd door_;
};

}  // namespace hoistd

#endif  // HOIST_DAEMON_IO_HELPER_HELPER_SPAWNER_H_
