#ifndef HOIST_DAEMON_RPC_WORK_QUEUE_H_
#define HOIST_DAEMON_RPC_WORK_QUEUE_H_

#include <memory>

#include "absl/base/thread_annotations.h"
#include "absl/functional/any_invocable.h"
#include "absl/synchronization/mutex.h"
#include "daemon/base/threads.h"

namespace hoistd {

// Where gRPC's calls do what would hold up gRPC's or the engine's threads:
// opening files, turning a large snapshot into a message.
//
// Threads:  thread-safe. Its threads only run what was posted.
// Bounds:   a call posts one thing at a time, so the queue is no longer than
//           the calls that gRPC lets in.
class WorkQueue {
 public:
  using Work = absl::AnyInvocable<void()>;

  WorkQueue() = default;
  ~WorkQueue() { Stop(); }

  // Once. StartThread's errors.
  absl::Status Start(int threads) ABSL_LOCKS_EXCLUDED(mu_);
  // Before Start and after Stop: runs `work` here and now.
  void Post(Work work) ABSL_LOCKS_EXCLUDED(mu_);
  // Runs what was posted and joins the threads. Once.
  void Stop() ABSL_LOCKS_EXCLUDED(mu_);

 private:
  absl::Mutex mu_;
  // From Start to Stop.
  std::unique_ptr<Executor> threads_ ABSL_GUARDED_BY(mu_);
};

}  // namespace hoistd

#endif  // HOIST_DAEMON_RPC_WORK_QUEUE_H_
