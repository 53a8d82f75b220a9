#ifndef HOIST_DAEMON_BASE_TASK_THREADS_H_
#define HOIST_DAEMON_BASE_TASK_THREADS_H_

#include <deque>
#include <thread>
#include <vector>

#include "absl/base/thread_annotations.h"
#include "absl/synchronization/mutex.h"
#include "daemon/base/threads.h"

namespace hoistd {

// An executor on one or more threads of its own.
//
// Threads:  Post from any. Owns and joins its own; the destructor runs earlier
//           tasks, itself if no thread has started.
class TaskThreads final : public Executor {
 public:
  TaskThreads() = default;
  ~TaskThreads() override;
  TaskThreads(const TaskThreads&) = delete;
  TaskThreads& operator=(const TaskThreads&) = delete;

  // Call once. An error is StartThread's: fewer threads have started, or none.
  absl::Status Start(int threads);
  void Post(Task task) override ABSL_LOCKS_EXCLUDED(mu_);

 private:
  void Work() ABSL_LOCKS_EXCLUDED(mu_);
  bool Awake() const ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu_) {
    return stopping_ || !tasks_.empty();
  }

  absl::Mutex mu_;
  bool stopping_ ABSL_GUARDED_BY(mu_) = false;
  std::deque<Task> tasks_ ABSL_GUARDED_BY(mu_);
  std::vector<std::thread> threads_;
};

}  // namespace hoistd

#endif  // HOIST_DAEMON_BASE_TASK_THREADS_H_
