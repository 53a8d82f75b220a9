#include "daemon/rpc/work_queue.h"

#include <utility>

namespace hoistd {

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
  // Without the lock: what was posted may post.
}

}  // namespace hoistd
