#include "client/src/plan/plan_finish.h"

#include <atomic>
#include <chrono>
#include <thread>

#include "client/src/base/patience.h"
#include "client/src/base/start_thread.h"
#include "hoist/shared/mutex.h"

namespace hoist {
namespace {

using std::chrono::steady_clock;

// Ends a plan whose hoistd is silent, so that the GPU can finish.
class SilenceWatch {
 public:
  SilenceWatch(Session& session, PlanLife& life)
      : session_(session), life_(life) {
    // Without it the wait for the GPU has no limit.
    (void)StartThread(&thread_, [this] { Watch(); });
  }
  ~SilenceWatch() {
    {
      const MutexLock lock(mu_);
      done_ = true;
      changed_.NotifyAll();
    }
    session_.WakeCalls();
    if (thread_.joinable()) thread_.join();
  }
  SilenceWatch(const SilenceWatch&) = delete;
  SilenceWatch& operator=(const SilenceWatch&) = delete;

 private:
  void Watch() {
    while (!done_) {
      const Status heard = session_.Ping(kGiveBackPatience, &done_);
      if (heard.code() == Code::kDeadlineExceeded) life_.End(heard);
      // Any other error is the session's end, which ends the plan.
      if (!heard.ok()) return;
      const auto again = steady_clock::now() + std::chrono::seconds(1);
      const MutexLock lock(mu_);
      while (!done_ && changed_.WaitUntil(mu_, again)) {
      }
    }
  }

  Session& session_;
  PlanLife& life_;
  std::atomic<bool> done_{false};
  Mutex mu_;
  CondVar changed_;
  std::thread thread_;
};

}  // namespace

void FinishOnDevice(StreamOrder* order, Session& session, PlanLife& life) {
  if (order == nullptr || order->on_cpu()) return;
  const SilenceWatch watch(session, life);
  (void)order->SynchronizeAll();
}

}  // namespace hoist
