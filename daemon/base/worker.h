#ifndef HOIST_DAEMON_BASE_WORKER_H_
#define HOIST_DAEMON_BASE_WORKER_H_

#include <deque>
#include <thread>

#include "absl/base/thread_annotations.h"
#include "absl/functional/any_invocable.h"
#include "absl/synchronization/mutex.h"

namespace hoistd {

// One thread that runs what it is given, in order.
//
// Threads:  Post from any thread, the worker's own included.
// Bounds:   the queue is as long as those who post let it be.
class Worker {
 public:
  Worker();
  ~Worker();  // Runs what was posted, then joins. Not from the worker itself.
  Worker(const Worker&) = delete;
  Worker& operator=(const Worker&) = delete;

  void Post(absl::AnyInvocable<void()> task) ABSL_LOCKS_EXCLUDED(mu_);

 private:
  void Run() ABSL_LOCKS_EXCLUDED(mu_);

  absl::Mutex mu_;
  std::deque<absl::AnyInvocable<void()>> tasks_ ABSL_GUARDED_BY(mu_);
  bool stopping_ ABSL_GUARDED_BY(mu_) = false;
  std::thread thread_;
};

}  // namespace hoistd

#endif  // HOIST_DAEMON_BASE_WORKER_H_
