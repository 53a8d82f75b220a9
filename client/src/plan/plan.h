// A plan: groups staged one after another, without messages.
#ifndef HOIST_CLIENT_SRC_PLAN_PLAN_H_
#define HOIST_CLIENT_SRC_PLAN_PLAN_H_

#include <atomic>
#include <chrono>
#include <cstdint>
#include <memory>
#include <optional>
#include <string>
#include <unordered_map>
#include <vector>

#include "client/src/device/stream_order.h"
#include "client/src/messages/messages.h"
#include "client/src/plan/plan_lane.h"
#include "client/src/plan/plan_layout.h"
#include "client/src/plan/plan_life.h"
#include "client/src/plan/plan_residents.h"
#include "client/src/plan/plan_turns.h"
#include "client/src/session/session.h"
#include "hoist/c/plan.h"
#include "hoist/shared/mutex.h"
#include "hoist/shared/status.h"

namespace hoist {

// What may change while a plan lives.
struct PlanTerms {
  uint64_t budget = 0;  // As asked for.
  std::vector<uint32_t> order;
  bool learn = false;
};
PlanTerms TermsOf(const hoist_plan_options& options);
// `options` with these terms, whose order it points to.
hoist_plan_options WithTerms(hoist_plan_options options,
                             const PlanTerms& terms);
bool GivesWay(const hoist_plan_options& options);
// Of a group that is staged by message.
std::chrono::milliseconds SpaceDeadline(const hoist_plan_options& options);

// A plan's options after the call that gave them: without its order.
struct KeptOptions : hoist_plan_options {
  explicit KeptOptions(const hoist_plan_options& given)
      : hoist_plan_options(given),
        block_of(given.blocks, given.blocks + given.block_count) {
    order = nullptr;
    order_length = 0;
    blocks = block_of.data();
  }
  KeptOptions(const KeptOptions&) = delete;
  KeptOptions& operator=(const KeptOptions&) = delete;

  const std::vector<uint32_t> block_of;
};

// hoist/c/plan.h has the promises of hoist_plan_* calls. In the child of a fork
// only forked() may be called.
//
// Threads:  thread-safe. `mu_` is released while a call waits on the CPU for
//           bytes, and held during a remake of the plan.
// Owns:     leases of residents and unplanned groups; the lane.
// Bounds:   memory grows with the model's groups and the order.
class Plan {
 public:
  static constexpr std::chrono::milliseconds kStageDeadline{60'000};

  static Result<std::unique_ptr<Plan>> Create(
      std::shared_ptr<Session> session, ModelPtr model,
      const hoist_plan_options& options);
  Plan(const Plan&) = delete;
  Plan& operator=(const Plan&) = delete;
  // Waits for the GPU. Not in the child of a fork.
  ~Plan();

  // `turn_deadline`: limits the wait for a staged group in the same place.
  Status Stage(uint32_t group, cuda::Stream stream, const void** data,
               std::chrono::milliseconds turn_deadline = {});
  Status Done(uint32_t group, cuda::Stream stream);
  Status Check();
  // Waits for the GPU, then checks: what was computed until now.
  Status Finish();
  Result<int> EventFd() { return life_.EventFd(); }
  // Before EventFd is called; see PlanLife.
  Status SignalOn(int event) { return life_.SignalOn(event); }
  Status EndPass(bool* changed);
  Status SetBudget(uint64_t budget_bytes);
  Status Reorder(std::vector<uint32_t> order);

  bool forked() const { return session_->forked(); }
  const ModelTable& model() const { return *model_; }
  PlanTerms terms() const;  // With the order in force.
  hoist_plan_info info() const;
  hoist_plan_stats stats() const;
  // HOIST_PLANNED_*. OutOfRange: no such group.
  Result<int> KindOf(uint32_t group) const;
  // Waits for a resident. FailedPrecondition: the group is not planned.
  Result<const void*> AddressOf(uint32_t group);

 private:
  enum class GroupKind {
    kNot,    // Staged by message.
    kEmpty,  // Nothing to stage.
    kResident,
    kStreamed,
  };
  struct Group {
    GroupKind kind = GroupKind::kNot;
    uint32_t lane = 0;  // kStreamed: its number in the lane.
    uint32_t count = 0;
    const void* address = nullptr;  // kStreamed, and residents once seen.
    PlanResidents::Slot* resident = nullptr;
  };

  Plan(std::shared_ptr<Session> session, ModelPtr model,
       const hoist_plan_options& options);

  Status MakeOrder();
  // Sends the plan, and installs the answer in place of the old plan.
  Status Set(const std::vector<uint32_t>& order, uint64_t budget_bytes,
             uint64_t replaces) HOIST_REQUIRES(mu_);
  Status Install(PlanGrant grant, const std::vector<uint32_t>& order)
      HOIST_REQUIRES(mu_);
  Status Replace(const std::vector<uint32_t>& order, uint64_t budget_bytes)
      HOIST_REQUIRES(mu_);

  // Ok unless the plan has ended.
  Status CheckAlive() HOIST_REQUIRES(mu_);
  bool MayHaveEnded() const HOIST_REQUIRES(mu_) {
    return life_.ended() || (lane_ != nullptr && lane_->faulted());
  }

  // Releases the lock while it waits.
  Status AwaitTurn(uint32_t number, std::chrono::milliseconds deadline)
      HOIST_REQUIRES(mu_);
  Status StagePlanned(Group& group, cuda::Stream stream) HOIST_REQUIRES(mu_);
  // These release the lock while they wait.
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
  const KeptOptions options_;
  PlanLife life_;
  std::unique_ptr<StreamOrder> order_;

  Mutex unplanned_mu_;  // Before mu_.
  // Groups staged by message.
  std::unordered_map<uint32_t, PlanResidents::Held> unplanned_
      HOIST_GUARDED_BY(unplanned_mu_);

  mutable Mutex mu_;
  CondVar turn_ended_;
  uint32_t awaiting_turn_ HOIST_GUARDED_BY(mu_) = 0;
  std::vector<Group> groups_ HOIST_GUARDED_BY(mu_);  // By the model's numbers.
  // Groups with a count above 0.
  uint32_t staged_ HOIST_GUARDED_BY(mu_) = 0;
  PlanLayout layout_ HOIST_GUARDED_BY(mu_);
  // nullptr: nothing is streamed. It and the residents stay while a group is
  // staged, even when the lock is released.
  std::unique_ptr<PlanLane> lane_ HOIST_GUARDED_BY(mu_);
  std::optional<PlanTurns> turns_ HOIST_GUARDED_BY(mu_);  // If there is a lane.
  // Shared with calls that wait for one during a remake of the plan.
  std::shared_ptr<PlanResidents> residents_ HOIST_GUARDED_BY(mu_);
  // The order that was sent.
  std::vector<uint32_t> in_force_ HOIST_GUARDED_BY(mu_);
  uint64_t wanted_budget_ HOIST_GUARDED_BY(mu_) = 0;
  hoist_plan_info info_ HOIST_GUARDED_BY(mu_) = {};
  hoist_plan_stats stats_ HOIST_GUARDED_BY(mu_) = {};
  // Of this pass, while learning.
  std::vector<uint32_t> recorded_ HOIST_GUARDED_BY(mu_);
};

}  // namespace hoist

#endif  // HOIST_CLIENT_SRC_PLAN_PLAN_H_
