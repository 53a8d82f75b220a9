// Whether a plan still stands, and that nothing waits for one that does not.
#ifndef HOIST_CLIENT_SRC_PLAN_LIFE_H_
#define HOIST_CLIENT_SRC_PLAN_LIFE_H_

#include <atomic>
#include <cstdint>
#include <span>
#include <thread>

#include "client/src/connection.h"
#include "client/src/plan_lane.h"
#include "hoist/shared/mutex.h"
#include "hoist/shared/status.h"
#include "hoist/shared/unique_fd.h"

namespace hoist {

// Threads:  thread-safe. Takes no lock that is held over a wait, so that the
//           end of a session always gets through to the GPU.
class PlanLife final : public Connection::Listener {
 public:
  PlanLife() = default;
  PlanLife(const PlanLife&) = delete;
  PlanLife& operator=(const PlanLife&) = delete;
  ~PlanLife() override;

  bool ended() const { return ended_.load(std::memory_order_acquire); }
  // Why it ended; ok while it has not.
  Status why() const;
  // The first reason holds. All waits in the lane are let through.
  void End(const Status& why);
  void SessionEnded(const Status& why) override { End(why); }
  void SessionResumed() override {}
  void PlansEnded(std::span<const uint64_t> plans, const Status& why) override;
  // Which of hoistd's plans it is from now on.
  void SetPlan(uint64_t id) { plan_.store(id); }

  // An eventfd, which is this object's; told by End, and by
  void Tell();
  Result<int> EventFd();

  // The lane whose waits are to be let through; nullptr: none. What was set
  // before is not touched any more. Once is not enough: a graph that is
  // launched after the end waits again, and a copy that was under way may write
  // an older word over the one that lets through. So a thread does it every
  // millisecond after the end, until this object goes; before, it sleeps.
  void Watch(PlanLane* lane);

 private:
  void LetThrough();
  void TellLocked() HOIST_REQUIRES(mu_);

  mutable Mutex mu_;
  Status why_ HOIST_GUARDED_BY(mu_);
  PlanLane* lane_ HOIST_GUARDED_BY(mu_) = nullptr;
  UniqueFd event_ HOIST_GUARDED_BY(mu_);  // None: nobody asked yet.
  bool stopping_ HOIST_GUARDED_BY(mu_) = false;
  CondVar changed_;
  std::atomic<bool> ended_{false};
  std::atomic<uint64_t> plan_{0};
  std::thread thread_;
};

}  // namespace hoist

#endif  // HOIST_CLIENT_SRC_PLAN_LIFE_H_
