// Whether a plan has ended; lets the waits of an ended one through.
#ifndef HOIST_CLIENT_SRC_PLAN_PLAN_LIFE_H_
#define HOIST_CLIENT_SRC_PLAN_PLAN_LIFE_H_

#include <atomic>
#include <cstdint>
#include <memory>
#include <span>
#include <thread>
#include <vector>

#include "client/src/plan/plan_lane.h"
#include "client/src/session/connection.h"
#include "hoist/shared/mutex.h"
#include "hoist/shared/status.h"
#include "hoist/shared/unique_fd.h"

namespace hoist {

// Threads:  thread-safe. Takes no lock that is held over a wait, so that a
//           session's end always reaches the GPU.
// Owns:     retired lanes. Borrows the watched one.
class PlanLife final : public Connection::Listener {
 public:
  PlanLife() = default;
  PlanLife(const PlanLife&) = delete;
  PlanLife& operator=(const PlanLife&) = delete;
  ~PlanLife() override;

  bool ended() const { return ended_.load(std::memory_order_acquire); }
  // Why it ended; ok before its end.
  Status why() const;
  // The first reason counts. Lets all waits in the lane through.
  void End(const Status& why);
  void SessionEnded(const Status& why) override { End(why); }
  void SessionResumed() override {}
  void PlansEnded(std::span<const uint64_t> plans, const Status& why) override;
  // Sets hoistd's number of the plan.
  void SetPlan(uint64_t id) { plan_.store(id); }

  // Signals EventFd(), as End does.
  void Tell();
  // An eventfd of this object.
  Result<int> EventFd();
  // Signals a duplicate of that eventfd instead.
  Status SignalOn(int event);

  // Sets the lane whose waits the end lets through; nullptr: none. The previous
  // lane is no longer touched. To let them through once is not enough: a graph
  // launched after the end waits again, and a copy under way may overwrite a
  // word. So after the end a thread repeats it every millisecond for the
  // object's life. Before the end it sleeps, or looks at retired lanes.
  // ResourceExhausted: no thread can be started; the previous lane stays.
  Status Watch(PlanLane* lane);
  // Retires a lane that was watched and that graphs captured. A later launch
  // of such a graph would read other bytes than its groups', so it ends the
  // plan.
  void Retire(std::unique_ptr<PlanLane> lane);
  // No stream may still use them.
  void DropRetired();

 private:
  void LetThrough();
  void LookAtRetired() HOIST_REQUIRES(mu_);
  void EndLocked(const Status& why) HOIST_REQUIRES(mu_);
  void TellLocked() HOIST_REQUIRES(mu_);

  mutable Mutex mu_;
  Status why_ HOIST_GUARDED_BY(mu_);
  PlanLane* lane_ HOIST_GUARDED_BY(mu_) = nullptr;
  // One per remake after a capture.
  std::vector<std::unique_ptr<PlanLane>> retired_ HOIST_GUARDED_BY(mu_);
  UniqueFd event_ HOIST_GUARDED_BY(mu_);  // Made on first use.
  bool told_ HOIST_GUARDED_BY(mu_) = false;
  bool stopping_ HOIST_GUARDED_BY(mu_) = false;
  CondVar changed_;
  std::atomic<bool> ended_{false};
  std::atomic<uint64_t> plan_{0};
  std::thread thread_;
};

}  // namespace hoist

#endif  // HOIST_CLIENT_SRC_PLAN_PLAN_LIFE_H_
