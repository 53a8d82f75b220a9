#include "daemon/base/threads.h"

#include <thread>
#include <utility>

#include "daemon/base/start_thread.h"
#include "daemon/base/status.h"
#include "daemon/base/task_threads.h"

namespace hoistd {
namespace {

class RunningThread final : public Running {
 public:
  explicit RunningThread(std::thread thread) : thread_(std::move(thread)) {}
  ~RunningThread() override { thread_.join(); }

  static void Run(Loop& loop) {
    loop.Begin();
    while (!loop.over()) {
      const absl::Duration idle = loop.Turn();
      if (idle > absl::ZeroDuration()) loop.Wait(idle);
    }
  }

 private:
  std::thread thread_;
};

class SystemThreads final : public Threads {
 public:
  absl::StatusOr<std::unique_ptr<Executor>> MakeExecutor(int threads) override {
    auto made = std::make_unique<TaskThreads>();
    HOIST_RETURN_IF_ERROR(made->Start(threads));
    return made;
  }
  absl::StatusOr<std::unique_ptr<Running>> Start(Loop& loop) override {
    HOIST_ASSIGN_OR_RETURN(std::thread thread,
                           StartThread([&loop] { RunningThread::Run(loop); }));
    return std::make_unique<RunningThread>(std::move(thread));
  }
  void Await(const absl::Notification& done) override {
    done.WaitForNotification();
  }
};

}  // namespace

Threads& TrueThreads() {
  static SystemThreads threads;
  return threads;
}

}  // namespace hoistd
