#ifndef HOIST_DAEMON_BASE_GATHER_H_
#define HOIST_DAEMON_BASE_GATHER_H_

#include <cstdint>
#include <utility>

#include "absl/base/thread_annotations.h"
#include "absl/functional/any_invocable.h"
#include "absl/status/status.h"
#include "absl/synchronization/mutex.h"

namespace hoistd {

// Calls back once, when all `parts` have ended, with the first error.
//
// Threads:  thread-safe; calls back from the last part's thread, unlocked.
// Owns:     nothing. Each part holds a share, so it ends with the last one.
class Gather {
 public:
  using Done = absl::AnyInvocable<void(absl::Status)>;

  // `parts` > 0.
  Gather(uint64_t parts, Done done) : done_(std::move(done)), left_(parts) {}

  void Part(const absl::Status& status) ABSL_LOCKS_EXCLUDED(mu_) {
    absl::Status all;
    {
      absl::MutexLock lock(&mu_);
      status_.Update(status);
      if (--left_ > 0) return;
      all = status_;
    }
    done_(std::move(all));
  }

 private:
  Done done_;
  absl::Mutex mu_;
  uint64_t left_ ABSL_GUARDED_BY(mu_);
  absl::Status status_ ABSL_GUARDED_BY(mu_);
};

}  // namespace hoistd

#endif  // HOIST_DAEMON_BASE_GATHER_H_
