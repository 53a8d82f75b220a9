// Plans: their promises, rings, and host holdings.
#include <algorithm>
#include <limits>
#include <utility>

#include "absl/container/flat_hash_map.h"
#include "absl/strings/str_cat.h"
#include "daemon/base/check.h"
#include "daemon/base/status.h"
#include "daemon/core/node.h"

namespace hoistd {
void Node::SetPlan(RequestId request, SessionId session,
                   const SetPlanArgs& args, absl::Time now, Effects& effects) {
  tenure_.Plan(request, {session, args}, now, effects);
  Tick(now, effects);
}

void Node::AdvancePlans(absl::Time now, Effects& effects) {
  std::vector<RequestId> requests;
  for (const auto& [request, pending] : tenure_.plans().waiting()) {
    requests.push_back(request);
  }
  for (const RequestId request : requests) AdvancePlan(request, now, effects);
}

void Node::AdvancePlan(RequestId request, absl::Time now, Effects& effects) {
  const PlanId id(ids_.Next());
  std::optional<NodeEvent> stands = tenure_.AdvancePlan(request, id, now);
  Follow(now, effects);
  if (!stands.has_value()) return;
  effects.events.push_back(*std::move(stands));
  Answer answer = {request};
  answer.plan = *tenure_.FindPlan(id);
  effects.answers.push_back(std::move(answer));
}

void Node::ExpirePlans(absl::Time now, Effects& effects) {
  for (const RequestId request : tenure_.plans().Late(now)) {
    const PendingPlan& pending = tenure_.plans().waiting().at(request);
    effects.answers.push_back(
        {request, absl::ResourceExhaustedError(absl::StrCat(
                      "no space for the plan: ",
                      picture().TextFor(tenure_.PeerOf(pending.session),
                                        pending.blocked)))});
    tenure_.plans().Drop(request);
  }
}

absl::Status Node::EndPlan(SessionId session, PlanId id, absl::Time now,
                           Effects& effects) {
  HOIST_ASSIGN_OR_RETURN(const EndedPlan ended,
                         tenure_.EndPlan(session, id, now));
  effects.ended.push_back(ended);
  NodeEvent event;
  event.kind = EventKind::kPlanEnded;
  event.session = session;
  event.at = OnDevice(ended.device);
  effects.events.push_back(std::move(event));
  Tick(now, effects);
  return absl::OkStatus();
}

void Node::FreePlan(PlanId id, absl::Time now, Effects& effects) {
  const StandingPlan* plan = tenure_.plans().Find(id);
  HOIST_CHECK(plan != nullptr && plan->ended);
  for (const GroupIndex group : plan->asked) {
    Need* need = supply_.needs().Find({{plan->grant.model, group}, kHost});
    if (need == nullptr) continue;
    std::erase_if(need->waiters, [&](const Waiter& w) { return w.hold == id; });
    supply_.needs().Changed(*need);
  }
  tenure_.FreePlan(id);
  Tick(now, effects);
}

void Node::Hold(PlanId id, const std::vector<GroupIndex>& groups, bool urgent,
                absl::Time now, Effects& effects) {
  const StandingPlan* found = tenure_.plans().FindLive(id);
  if (found == nullptr) return;
  const StandingPlan& plan = *found;
  uint64_t room = tenure_.HostRoom(plan.uid);
  for (const GroupIndex group : groups) {
    const CopyRef ref = {{plan.grant.model, group}, kHost};
    const uint64_t bytes = copies_.SpaceOf(ref.key);
    if (plan.held.contains(group)) continue;
    if (!urgent && !plan.asked.contains(group) && !quota_.Uses(plan.uid, ref) &&
        (bytes > room ||
         !quota_.Check(plan.uid, Quota::kHeldBytes, bytes).ok())) {
      continue;  // Requested urgently if the plan cannot proceed.
    }
    if (!tenure_.plans().Ask(id, group)) {
      // It may not have been urgent before.
      if (urgent && supply_.needs().Find(ref))
        supply_.NeedFor(ref, true, effects);
      continue;
    }
    if (room != QuotaLimits::kNone) room = tenure_.HostRoom(plan.uid);
    BringArgs bring;
    bring.copy = ref;
    bring.hold = id;
    Waiter waiter;
    waiter.hold = id;
    waiter.deadline = absl::InfiniteFuture();
    if (absl::Status s = CheckBring(bring); !s.ok()) {
      Refuse(waiter, ref, std::move(s), effects);
      continue;
    }
    Copy& copy = copies_.At(ref);
    if (copy.usable()) {
      Satisfy(waiter, ref, copy, now, effects);
      continue;
    }
    supply_.AddWaiter(supply_.NeedFor(ref, urgent, effects), waiter);
  }
  Tick(now, effects);
}

void Node::HoldArrived(PlanId id, const CopyRef& ref, Copy& copy,
                       Effects& effects) {
  // The plan exists: FreePlan drops its waiters.
  if (!tenure_.plans().Hold(id, ref.key.group)) return;
  ++copy.leases;
  ImageRanges ranges = space_.RangesOf(ref, copy);
  if (ranges.empty()) {
    ranges.push_back(
        {copy.offset, 0, SpaceOf(*copies_.FindGroup(ref.key)->group)});
  }
  effects.held.push_back({id, ref.key.group, std::move(ranges)});
}

// A need that a plan cannot proceed without has no room on the host: plans'
// host holdings are not promised, since others publish and hold too.
void Node::AskPlansForRoom(const Need& need, Effects& effects) const {
  std::set<PlanId> waiting;
  for (const Waiter& waiter : need.waiters) {
    if (waiter.hold.has_value()) waiting.insert(*waiter.hold);
  }
  if (waiting.empty()) return;
  if (const auto plan =
          tenure_.PlanToCrowd(waiting, copies_.SpaceOf(need.copy.key))) {
    effects.crowded.push_back(*plan);
  }
}

void Node::Unhold(PlanId id, GroupIndex group, absl::Time now,
                  Effects& effects) {
  const StandingPlan* plan = tenure_.plans().Find(id);
  if (plan == nullptr || !plan->held.contains(group)) return;
  copies_.At({{plan->grant.model, group}, kHost}).last_use = now;
  tenure_.Unhold(*plan, group);
  Tick(now, effects);
}

void Node::PlanUsed(PlanId id, GroupIndex group, absl::Time now) {
  const StandingPlan* plan = tenure_.plans().Find(id);
  if (plan == nullptr) return;
  tenure_.orders().Staged(plan->session, {plan->grant.model, group}, now);
}

}  // namespace hoistd
