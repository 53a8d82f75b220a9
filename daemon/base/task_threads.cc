#include "daemon/base/task_threads.h"

#include <utility>

#include "daemon/base/start_thread.h"
#include "daemon/base/status.h"

namespace hoistd {

absl::Status TaskThreads::Start(int threads) {
  for (int i = 0; i < threads; ++i) {
    HOIST_ASSIGN_OR_RETURN(threads_.emplace_back(),
                           StartThread([this] { Work(); }));
  }
  return absl::OkStatus();
}

TaskThreads::~TaskThreads() {
  {
    absl::MutexLock lock(&mu_);
    stopping_ = true;
  }
  for (std::thread& thread : threads_) thread.join();
  Work();  // Where there was none.
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
