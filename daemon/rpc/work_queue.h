#ifndef HOIST_DAEMON_RPC_WORK_QUEUE_H_
#define HOIST_DAEMON_RPC_WORK_QUEUE_H_

#include <memory>

#include "absl/base/thread_annotations.h"
#include "absl/functional/any_invocable.h"
#include "absl/synchronization/mutex.h"
#include "daemon/base/threads.h"

namespace hoistd {

// Runs work of gRPC calls that would block gRPC's or the engine's threads:
// opening files, encoding a large message.
//
// Threads:  thread-safe. Its threads run only posted work.
// Bounds:   a call posts one piece of work at a time, so gRPC's limit on calls
//           bounds the queue.
class WorkQueue {
 public:
  using Work = absl::AnyInvocable<void()>;

  WorkQueue() = default;
  ~WorkQueue() { Stop(); }

  // Once. StartThread's errors.
  absl::Status Start(int threads) ABSL_LOCKS_EXCLUDED(mu_);
  // Before Start and after Stop: runs `work` on the calling thread.
  void Post(Work work) ABSL_LOCKS_EXCLUDED(mu_);
  // Runs the posted work and joins the threads. Once.
  void Stop() ABSL_LOCKS_EXCLUDED(mu_);

 private:
  absl::Mutex mu_;
  // From Start to Stop.
  std::unique_ptr<Executor> threads_ ABSL_GUARDED_BY(mu_);
};

}  // namespace hoistd

#endif  // HOIST_DAEMON_RPC_WORK_QUEUE_H_
