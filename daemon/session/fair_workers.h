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

// A thread pool for long work, fair by user. It runs each user's work in order,
// one piece at a time, and takes users round robin: a long queue delays only
// its own user.
//
// Threads:  thread-safe. Owns its threads, which run only posted work.
// Bounds:   none; the caller bounds its posts.
class FairWorkers {
 public:
  using Work = absl::AnyInvocable<void()>;

  FairWorkers() = default;
  ~FairWorkers();  // Stop()s.

  // Once. StartThread's errors: fewer threads run, or none.
  absl::Status Start(int threads);
  void Post(User uid, Work work) ABSL_LOCKS_EXCLUDED(mu_);
  // Waits for running work, and drops waiting and later work. Once, or again
  // from the same thread.
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
  // Users with waiting work and none running, in the order of their turns.
  std::deque<User> turns_ ABSL_GUARDED_BY(mu_);
  bool stopping_ ABSL_GUARDED_BY(mu_) = false;
  std::vector<std::thread> threads_;
};

}  // namespace hoistd

#endif  // HOIST_DAEMON_SESSION_FAIR_WORKERS_H_
