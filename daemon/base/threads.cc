#include "daemon/base/threads.h"

#include <thread>

#include "daemon/base/task_threads.h"

namespace hoistd {
namespace {

class RunningThread final : public Running {
 public:
  explicit RunningThread(Loop& loop) : thread_([&loop] { Run(loop); }) {}
  ~RunningThread() override { thread_.join(); }

 private:
  static void Run(Loop& loop) {
    loop.Begin();
    while (!loop.over()) {
      const absl::Duration idle = loop.Turn();
      if (idle > absl::ZeroDuration()) loop.Wait(idle);
    }
  }

  std::thread thread_;
};

class SystemThreads final : public Threads {
 public:
  std::unique_ptr<Executor> MakeExecutor(int threads) override {
    return std::make_unique<TaskThreads>(threads);
  }
  std::unique_ptr<Running> Start(Loop& loop) override {
    return std::make_unique<RunningThread>(loop);
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
