#include "daemon/rpc/work_queue.h"

#include <utility>

#include "daemon/base/status.h"

namespace hoistd {

absl::Status WorkQueue::Start(int threads) {
  HOIST_ASSIGN_OR_RETURN(std::unique_ptr<Executor> made,
                         TrueThreads().MakeExecutor(threads));
  absl::MutexLock lock(&mu_);
  threads_ = std::move(made);
  return absl::OkStatus();
}

void WorkQueue::Post(Work work) {
  {
    absl::MutexLock lock(&mu_);
    if (threads_ != nullptr) return threads_->Post(std::move(work));
  }
  work();
}

void WorkQueue::Stop() {
  std::unique_ptr<Executor> threads;
  {
    absl::MutexLock lock(&mu_);
    threads = std::move(threads_);
  }
  // Joins without the lock, since posted work may post.
}

}  // namespace hoistd
