#ifndef HOIST_DAEMON_RPC_WORK_QUEUE_H_
#define HOIST_DAEMON_RPC_WORK_QUEUE_H_

#include <deque>
#include <thread>
#include <vector>

#include "absl/base/thread_annotations.h"
#include "absl/functional/any_invocable.h"
#include "absl/synchronization/mutex.h"

namespace hoistd {

// Where gRPC's calls do what would hold up gRPC's or the engine's threads:
// opening files, turning a large snapshot into a message.
//
// Threads:  thread-safe. Owns its threads, which only run what was posted.
// Bounds:   a call posts one thing at a time, so the queue is no longer than
//           the calls that gRPC lets in.
class WorkQueue {
 public:
  using Work = absl::AnyInvocable<void()>;

  explicit WorkQueue(int threads);
  ~WorkQueue();  // Runs what was posted.

  // After Stop: runs `work` here and now.
  void Post(Work work) ABSL_LOCKS_EXCLUDED(mu_);
  // Runs what was posted and joins the threads. Once.
  void Stop() ABSL_LOCKS_EXCLUDED(mu_);

 private:
  void Run() ABSL_LOCKS_EXCLUDED(mu_);
  bool Ready() const ABSL_SHARED_LOCKS_REQUIRED(mu_) {
    return stopping_ || !queue_.empty();
  }

  absl::Mutex mu_;
  std::deque<Work> queue_ ABSL_GUARDED_BY(mu_);
  bool stopping_ ABSL_GUARDED_BY(mu_) = false;
  std::vector<std::thread> threads_;
};

}  // namespace hoistd

#endif  // HOIST_DAEMON_RPC_WORK_QUEUE_H_
