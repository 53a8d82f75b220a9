// What an attachment has of one hoistd, and its making.
#ifndef HOIST_CLIENT_SRC_ATTACHMENT_STANDING_H_
#define HOIST_CLIENT_SRC_ATTACHMENT_STANDING_H_

#include <algorithm>
#include <chrono>
#include <cstdint>
#include <functional>
#include <map>
#include <memory>
#include <numeric>
#include <optional>
#include <span>
#include <string>
#include <utility>
#include <vector>

#include "client/src/attachment/model_source.h"
#include "client/src/base/patience.h"
#include "client/src/plan/plan.h"
#include "client/src/session/session.h"
#include "hoist/c/attachment.h"
#include "hoist/shared/status.h"

namespace hoist {

// Threads:  the owner's.
struct Standing {
  // What its maker has: a session that is open while `open` exists, and the
  // source's model there, if it is known.
  struct Begin {
    std::shared_ptr<Session> session;
    std::shared_ptr<void> open;
    HeldModel model;
  };
  explicit Standing(Begin begin)
      : session(std::move(begin.session)),
        open(std::move(begin.open)),
        model(std::move(begin.model)) {}
  Standing(const Standing&) = delete;
  Standing& operator=(const Standing&) = delete;
  ~Standing() {
    session->plans().ForgetWakes(this);
    GiveBack();
    if (model.table != nullptr && session->Check().ok()) {
      session->model_uses().DoneWith(*model.table, made);
      model.held.reset();
      // hoistd ignores what it has not read at the session's end.
      if (made) (void)session->Ping(GiveBackPatience(), nullptr);
    }
  }
  // Waits for the GPU.
  void GiveBack() {
    plan.reset();
    residents.clear();
  }
  // nullptr: the plan's business.
  Lease* Resident(uint32_t group) const {
    const auto found = residents.find(group);
    return found == residents.end() ? nullptr : found->second.get();
  }
  bool on_cpu(uint32_t device) const {
    return session->FindDevice(device)->kind == DeviceKind::kEmulated;
  }

  // HOIST_PLANNED_*, by the first number.
  Result<int> KindOf(uint32_t group) const {
    if (Resident(group) != nullptr) return int{HOIST_PLANNED_RESIDENT};
    return plan->KindOf(number[group]);
  }
  // The plan's order, in numbers of this hoistd: without the residents; an
  // unknown one stays so if there are none. InvalidArgument: nothing is left.
  Result<std::vector<uint32_t>> PlanOrder(
      std::span<const uint32_t> order) const {
    std::vector<uint32_t> numbers;
    if (order.empty() && residents.empty()) return numbers;
    std::vector<uint32_t> all(order.begin(), order.end());
    if (all.empty()) {
      all.resize(number.size());
      std::iota(all.begin(), all.end(), 0);
    }
    for (const uint32_t group : all) {
      if (group >= number.size()) return model.table->CheckGroup(group);
      if (Resident(group) == nullptr) numbers.push_back(number[group]);
    }
    if (!numbers.empty()) return numbers;
    return Status(
        Code::kInvalidArgument,
        "all groups of the order are residents; leave one to the plan, or give "
        "no residents and a budget that holds all");
  }
  // The reverse.
  std::vector<uint32_t> OwnOrder(std::span<const uint32_t> order) const {
    std::vector<uint32_t> groups;
    for (const uint32_t here : order) {
      const auto at = std::find(number.begin(), number.end(), here);
      groups.push_back(static_cast<uint32_t>(at - number.begin()));
    }
    return groups;
  }
  // What the residents leave to the plan. ResourceExhausted: nothing.
  Result<uint64_t> PlanBudget(uint64_t budget) const {
    uint64_t held = 0;
    for (const auto& [group, lease] : residents) {
      held += lease->grant().image_bytes;
    }
    if (budget == 0 || budget > held) return budget == 0 ? 0 : budget - held;
    return Status(Code::kResourceExhausted,
                  "a budget of " + std::to_string(budget) +
                      " bytes is too small: its residents have " +
                      std::to_string(held) +
                      " bytes, and the plan needs room for other groups; raise "
                      "it, or name fewer residents");
  }

  const std::shared_ptr<Session> session;
  const std::shared_ptr<void> open;  // The last one closes the session.
  HeldModel model;
  bool made = false;             // The model, for this one, which never stood.
  std::vector<uint32_t> number;  // Here, of the first model's groups.
  std::map<uint32_t, std::unique_ptr<Lease>> residents;  // By first number.
  std::unique_ptr<Plan> plan;  // nullptr: it gave way, or was refused.
  uint64_t generations = 0;    // Of earlier plans.
};
using StandingPtr = std::unique_ptr<Standing>;

// Makes what stands: at first, and after hoistd's end.
//
// Threads:  one call at a time.
class Renewer {
 public:
  using Clock = std::chrono::steady_clock;
  // Tries for so long, at least once; nullopt: as at first.
  using Connect = std::function<Result<std::shared_ptr<Session>>(
      std::optional<std::chrono::milliseconds> deadline)>;
  struct Events {
    int event = -1;  // An eventfd for each plan's events.
    // Called when hoistd asks to wake, unless empty; see LivePlans::WatchWakes.
    std::function<void()> wake;
  };

  // `options.plan` is set.
  Renewer(const hoist_attachment_options& options, Connect connect,
          ModelSource source);
  Renewer(const Renewer&) = delete;
  Renewer& operator=(const Renewer&) = delete;
  void Listen(Events events) { events_ = std::move(events); }

  // Takes `before`, unless it fails in the same session, or no hoistd is there.
  Result<StandingPtr> Stand(const PlanTerms& terms, StandingPtr& before,
                            std::optional<std::chrono::milliseconds> deadline);
  // Retries until then.
  Result<StandingPtr> StandBy(const PlanTerms& terms, StandingPtr& before,
                              Clock::time_point until);

  std::chrono::milliseconds wait() const { return wait_; }  // For a hoistd.
  // What first stood: the model, which numbers the groups for good.
  const ModelPtr& first() const { return first_; }
  bool on_cpu() const { return on_cpu_; }

 private:
  Status Make(Standing& at, const PlanTerms& terms);
  Status FindModel(Standing& at);
  Status HoldResidents(Standing& at);
  Status MakePlan(Standing& at, const PlanTerms& terms);

  const ModelSource source_;
  const Connect connect_;
  const KeptOptions plan_options_;  // Blocks by the attachment's numbers.
  const std::chrono::milliseconds wait_;
  std::vector<uint32_t> residents_;
  Events events_;
  ModelPtr first_;  // Fixed once something stood, as the next.
  bool on_cpu_ = false;
};

}  // namespace hoist

#endif  // HOIST_CLIENT_SRC_ATTACHMENT_STANDING_H_
