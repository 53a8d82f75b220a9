#include "daemon/base/task_threads.h"

#include <utility>

namespace hoistd {

TaskThreads::TaskThreads(int threads) {
  for (int i = 0; i < threads; ++i) {
    threads_.emplace_back(&TaskThreads::Work, this);
  }
}

TaskThreads::~TaskThreads() {
  {
    absl::MutexLock lock(&mu_);
    stopping_ = true;
  }
  for (std::thread& thread : threads_) thread.join();
}

void TaskThreads::Post(Task task) {
  absl::MutexLock lock(&mu_);
  tasks_.push_back(std::move(task));
}

void TaskThreads::Work() {
  while (true) {
    Task task;
    {
      absl::MutexLock lock(&mu_);
      mu_.Await(absl::Condition(this, &TaskThreads::Awake));
      if (tasks_.empty()) return;
      task = std::move(tasks_.front());
      tasks_.pop_front();
    }
    task();
  }
}

}  // namespace hoistd
