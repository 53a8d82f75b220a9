#ifndef HOIST_DAEMON_IO_HELPER_IO_HELPERS_H_
#define HOIST_DAEMON_IO_HELPER_IO_HELPERS_H_

#include <array>
#include <cstddef>
#include <deque>
#include <functional>
#include <map>
#include <memory>
#include <string>
#include <thread>
#include <vector>

#include "absl/base/thread_annotations.h"
#include "absl/functional/any_invocable.h"
#include "absl/status/statusor.h"
#include "absl/synchronization/mutex.h"
#include "absl/time/time.h"
#include "daemon/base/timed_cond_var.h"
#include "daemon/io_helper/helper_spawner.h"
#include "daemon/io_helper/io_helper.h"
#include "daemon/types/ids.h"
#include "hoist/shared/unique_fd.h"

namespace hoistd {

// The purpose of a call; each kind has helpers of its own.
enum class HelperCallKind { kReceive, kOpen, kRead };

struct IoHelperOptions {
  // A helper's longest silence.
  absl::Duration deadline = absl::Seconds(30);
  // Called for each abandoned process, from any thread; must not block.
  std::function<void(std::string note)> on_lost = [](const std::string&) {};
};

// Runs calls that may hang, in processes that hoistd can abandon.
//
// SIGKILL does not end a call that a FUSE server never answers, nor a process
// with a thread in it. So hoistd, which must be able to stop, makes no call on
// a file whose file system may hang. A hanging process is killed, which takes
// effect when its call returns, and another serves its owner's next calls.
//
// Threads:  thread-safe. Tasks run on threads of this object, which wait for
//           their process alone; their number follows the work.
// Owns:     threads and processes. Borrows the spawner. Idle ones end after
//           10 s.
// Bounds:   kWidth processes per user and kind; further calls wait. kMostLost
//           hanging processes per user: then the user's calls get Unavailable
//           until one ends. kMostInAll of all users, many times one user's.
// Restart:  a hanging process outlives hoistd, and ends when its call returns.
class IoHelpers {
 public:
  static constexpr std::array<size_t, 3> kWidth = {2, 2, 4};
  static constexpr size_t kMostLost = 8;
  static constexpr size_t kMostInAll = 1024;

  // Called once, with a process or the reason why there is none.
  using Task = absl::AnyInvocable<void(absl::StatusOr<IoHelper*>)>;

  static absl::StatusOr<std::unique_ptr<IoHelpers>> Create(
      HelperSpawner& spawner, IoHelperOptions options);
  ~IoHelpers();  // Stop()s.

  // After Stop, runs the task in this call, with Unavailable; likewise with
  // StartThread's error if the owner has no thread and gets none.
  void Post(User owner, HelperCallKind kind, Task task)
      ABSL_LOCKS_EXCLUDED(mu_);
  // Ends all waits: calls under way get Unavailable. Waits for the tasks, never
  // for a process. Idempotent.
  void Stop() ABSL_LOCKS_EXCLUDED(mu_);

 private:
  struct Line {
    std::deque<Task> waiting;
    size_t threads = 0;
    size_t idle = 0;  // Threads without a task.
  };
  struct Owner {
    std::array<Line, 3> lines;
    size_t processes = 0;  // Without the lost ones.
    std::vector<HelperProcess> lost;
  };

  IoHelpers(HelperSpawner& spawner, hoist::UniqueFd stop,
            IoHelperOptions options);

  absl::Status AddThread(User owner, HelperCallKind kind, Line& line)
      ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu_);
  void Run(User uid, HelperCallKind kind) ABSL_LOCKS_EXCLUDED(mu_);
  // False: the thread must end; it is no longer counted.
  bool Take(User uid, HelperCallKind kind, Task& task) ABSL_LOCKS_EXCLUDED(mu_);
  absl::StatusOr<std::unique_ptr<IoHelper>> Begin(User uid)
      ABSL_LOCKS_EXCLUDED(mu_);
  void End(User uid, std::unique_ptr<IoHelper> run) ABSL_LOCKS_EXCLUDED(mu_);
  absl::Status Admit(User uid) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu_);
  void ForgetEnded() ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu_);

  HelperSpawner& spawner_;
  const hoist::UniqueFd stop_;  // Readable once Stop was called.
  const IoHelperOptions options_;
  absl::Mutex mu_;
  TimedCondVar changed_;  // Idle threads wait for it.
  bool stopping_ ABSL_GUARDED_BY(mu_) = false;
  std::map<User, Owner> owners_ ABSL_GUARDED_BY(mu_);
  std::map<std::thread::id, std::thread> threads_ ABSL_GUARDED_BY(mu_);
  std::vector<std::thread> ended_ ABSL_GUARDED_BY(mu_);  // To be joined.
};

}  // namespace hoistd

#endif  // HOIST_DAEMON_IO_HELPER_IO_HELPERS_H_
