#ifndef HOIST_DAEMON_SESSION_FAIR_WORKERS_H_
#define HOIST_DAEMON_SESSION_FAIR_WORKERS_H_

#include <deque>
#include <map>
#include <thread>
#include <vector>

#include "absl/base/thread_annotations.h"
#include "absl/functional/any_invocable.h"
#include "absl/status/status.h"
#include "absl/synchronization/mutex.h"
#include "daemon/types/ids.h"

namespace hoistd {

// Threads for work that takes long and is done for users: each user's work in
// order and one piece at a time, the users in turn. So whoever has much to be
// done waits for it, and nobody else does.
//
// Threads:  thread-safe. Owns its threads, which only run what was posted.
// Bounds:   none; who posts keeps its own.
class FairWorkers {
 public:
  using Work = absl::AnyInvocable<void()>;

  FairWorkers() = default;
  ~FairWorkers();  // Stop()s.

  // Once. StartThread's errors: there are fewer, or none.
  absl::Status Start(int threads);
  void Post(User uid, Work work) ABSL_LOCKS_EXCLUDED(mu_);
  // Waits for what has begun, and drops the rest and what comes later. Once, or
  // again from the same thread.
  void Stop() ABSL_LOCKS_EXCLUDED(mu_);

 private:
  struct Line {
    std::deque<Work> waiting;
    bool running = false;
  };

  bool Ready() const ABSL_SHARED_LOCKS_REQUIRED(mu_) {
    return stopping_ || !turns_.empty();
  }
  void Run() ABSL_LOCKS_EXCLUDED(mu_);

  absl::Mutex mu_;
  std::map<User, Line> lines_ ABSL_GUARDED_BY(mu_);
  // Who has work waiting and none running, by when their turn is.
  std::deque<User> turns_ ABSL_GUARDED_BY(mu_);
  bool stopping_ ABSL_GUARDED_BY(mu_) = false;
  std::vector<std::thread> threads_;
};

}  // namespace hoistd

#endif  // HOIST_DAEMON_SESSION_FAIR_WORKERS_H_
