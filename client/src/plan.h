// A plan: groups staged one after another, without messages.
#ifndef HOIST_CLIENT_SRC_PLAN_H_
#define HOIST_CLIENT_SRC_PLAN_H_

#include <atomic>
#include <chrono>
#include <cstdint>
#include <memory>
#include <optional>
#include <string>
#include <unordered_map>
#include <vector>

#include "client/src/messages.h"
#include "client/src/plan_lane.h"
#include "client/src/plan_layout.h"
#include "client/src/plan_life.h"
#include "client/src/plan_residents.h"
#include "client/src/plan_turns.h"
#include "client/src/session.h"
#include "client/src/stream_order.h"
#include "hoist/shared/mutex.h"
#include "hoist/shared/status.h"

namespace hoist {

struct PlanOptions {
  // What hoistd is asked for, each time that the plan is made: an empty order
  // is learned, and 0 for a stage's deadline is kStageDeadline.
  SetPlanRequest request;
  bool learn = false;  // Though an order is given; EndPass alone ends a pass.
};

// What hoist_plan_* calls promise is in hoist_c.h.
//
// Threads:  thread-safe; `mu_` is not held while a call waits on the CPU for
//           bytes, but while the plan is made anew.
// Owns:     leases of residents and of unplanned groups, the lane.
// Bounds:   memory grows with the model's groups and the order.
class Plan {
 public:
  static constexpr std::chrono::milliseconds kStageDeadline{60'000};

  enum class GroupKind {
    kNot,    // Staged by message.
    kEmpty,  // Nothing to stage.
    kResident,
    kStreamed,
  };
  struct Info {
    uint64_t id = 0;
    uint32_t device = 0;
    uint64_t budget_bytes = 0;
    uint64_t resident_bytes = 0;
    uint64_t ring_bytes = 0;
    uint64_t streamed_bytes = 0;
    uint32_t groups = 0;
    uint32_t streamed = 0;
    uint32_t lead = 0;
    bool learning = false;
    uint64_t generation = 0;  // Times that it was made.
  };
  struct Stats {
    uint64_t stages = 0;
    uint64_t resident_stages = 0;
    uint64_t ready_stages = 0;
    uint64_t skipped = 0;
    uint64_t unplanned = 0;
    uint64_t host_waits = 0;
    uint64_t wake_ups = 0;
  };

  static Result<std::unique_ptr<Plan>> Create(std::shared_ptr<Session> session,
                                              ModelPtr model,
                                              PlanOptions options);
  Plan(const Plan&) = delete;
  Plan& operator=(const Plan&) = delete;
  // Waits for the GPU. Not in the child of a fork.
  ~Plan();

  // `turn_deadline`: to wait where a group in the same place is staged.
  Status Stage(uint32_t group, cuda::Stream stream, const void** data,
               std::chrono::milliseconds turn_deadline = {});
  Status Done(uint32_t group, cuda::Stream stream);
  Status Check();
  Result<int> EventFd() { return life_.EventFd(); }
  Status EndPass(bool* changed);
  Status SetBudget(uint64_t budget_bytes);
  Status SetOrder(std::vector<uint32_t> order);

  bool forked() const { return session_->forked(); }
  const ModelTable& model() const { return *model_; }
  Info info() const;
  Stats stats() const;
  // OutOfRange: the model has no such group.
  Result<GroupKind> KindOf(uint32_t group) const;
  // Waits for a resident. FailedPrecondition: the group is not planned.
  Result<const void*> AddressOf(uint32_t group);

 private:
  struct Group {
    GroupKind kind = GroupKind::kNot;
    uint32_t lane = 0;  // kStreamed: its number there.
    uint32_t count = 0;
    const void* address = nullptr;  // kStreamed, and residents once seen.
    PlanResidents::Slot* resident = nullptr;
  };

  Plan(std::shared_ptr<Session> session, ModelPtr model, PlanOptions options);

  Status MakeOrder();
  // Sends the plan, and puts what comes back in the place of what there was.
  Status Set(const std::vector<uint32_t>& order, uint64_t budget_bytes,
             uint64_t replaces) HOIST_REQUIRES(mu_);
  Status Install(PlanGrant grant, const std::vector<uint32_t>& order)
      HOIST_REQUIRES(mu_);
  Status Replace(const std::vector<uint32_t>& order, uint64_t budget_bytes)
      HOIST_REQUIRES(mu_);
  // The order without empty groups; of none, all of the model's.
  Result<std::vector<uint32_t>> Plannable(std::vector<uint32_t> order) const;

  Status CheckGroup(uint32_t group) const;
  // Ok while nothing says that the plan has ended.
  Status CheckAlive() HOIST_REQUIRES(mu_);
  bool MayHaveEnded() const HOIST_REQUIRES(mu_) {
    return life_.ended() || (lane_ != nullptr && lane_->faulted());
  }

  // Lets go of the lock while it waits.
  Status AwaitTurn(uint32_t number, std::chrono::milliseconds deadline)
      HOIST_REQUIRES(mu_);
  Status StagePlanned(Group& group, cuda::Stream stream) HOIST_REQUIRES(mu_);
  // These let go of the lock while they wait.
  Status StageResident(Group& group, cuda::Stream stream) HOIST_REQUIRES(mu_);
  Status StageStreamed(Group& group, cuda::Stream stream) HOIST_REQUIRES(mu_);
  Status StageUnplanned(uint32_t number, const void** data, cuda::Stream stream)
      HOIST_EXCLUDES(mu_);
  Status DoneStreamed(Group& group, cuda::Stream stream) HOIST_REQUIRES(mu_);
  Status DoneUnplanned(uint32_t number, cuda::Stream stream)
      HOIST_EXCLUDES(mu_);
  Status RefuseCapture(cuda::Stream stream, const char* what);

  // Learning.
  void Record(uint32_t number, cuda::Stream stream) HOIST_REQUIRES(mu_);
  Status TakeLearned(bool* changed) HOIST_REQUIRES(mu_);

  const std::shared_ptr<Session> session_;
  const ModelPtr model_;
  const PlanOptions options_;
  PlanLife life_;
  std::unique_ptr<StreamOrder> order_;

  Mutex unplanned_mu_;  // Before mu_.
  // What is staged by message, by group.
  std::unordered_map<uint32_t, PlanResidents::Held> unplanned_
      HOIST_GUARDED_BY(unplanned_mu_);

  mutable Mutex mu_;
  CondVar turn_ended_;
  uint32_t awaiting_turn_ HOIST_GUARDED_BY(mu_) = 0;
  std::vector<Group> groups_ HOIST_GUARDED_BY(mu_);  // By the model's numbers.
  // Groups whose count is not 0.
  uint32_t staged_ HOIST_GUARDED_BY(mu_) = 0;
  PlanLayout layout_ HOIST_GUARDED_BY(mu_);
  // nullptr: nothing is streamed. It and the residents stay while a group is
  // staged, also where the lock is let go of.
  std::unique_ptr<PlanLane> lane_ HOIST_GUARDED_BY(mu_);
  std::optional<PlanTurns> turns_ HOIST_GUARDED_BY(mu_);  // If there is a lane.
  // Shared with calls that wait for one of them while the plan is made anew.
  std::shared_ptr<PlanResidents> residents_ HOIST_GUARDED_BY(mu_);
  // The order that was sent.
  std::vector<uint32_t> in_force_ HOIST_GUARDED_BY(mu_);
  uint64_t wanted_budget_ HOIST_GUARDED_BY(mu_) = 0;
  Info info_ HOIST_GUARDED_BY(mu_);
  Stats stats_ HOIST_GUARDED_BY(mu_);
  // Of this pass, while learning.
  std::vector<uint32_t> recorded_ HOIST_GUARDED_BY(mu_);
};

}  // namespace hoist

#endif  // HOIST_CLIENT_SRC_PLAN_H_
