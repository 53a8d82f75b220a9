#include "daemon/rpc/work_queue.h"

#include <utility>

namespace hoistd {

WorkQueue::WorkQueue(int threads) {
  for (int i = 0; i < threads; ++i) {
    threads_.emplace_back([this] { Run(); });
  }
}

WorkQueue::~WorkQueue() { Stop(); }

void WorkQueue::Post(Work work) {
  {
    absl::MutexLock lock(&mu_);
    if (!stopping_) {
      queue_.push_back(std::move(work));
      return;
    }
  }
  work();
}

void WorkQueue::Stop() {
  {
    absl::MutexLock lock(&mu_);
    stopping_ = true;
  }
  for (std::thread& thread : threads_) {
    if (thread.joinable()) thread.join();
  }
}

void WorkQueue::Run() {
  while (true) {
    Work work;
    {
      absl::MutexLock lock(&mu_);
      mu_.Await(absl::Condition(this, &WorkQueue::Ready));
      if (queue_.empty()) return;  // Stopping, and all is done.
      work = std::move(queue_.front());
      queue_.pop_front();
    }
    work();
  }
}

}  // namespace hoistd
