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
  // Draining, a session may plan for the models that it uses already.
  const bool known = tenure_.Find(session, args.model).ok();
  if (known && !tenure_.draining()) tenure_.sessions().Use(session, args.model);
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
  effects.events.push_back({.kind = EventKind::kPlanEnded,
                            .at = OnDevice(ended.device),
                            .session = session});
  Tick(now, effects);
  return absl::OkStatus();
}

void Node::FreePlan(PlanId id, absl::Time now, Effects& effects) {
  const StandingPlan* plan = tenure_.plans().Find(id);
  HOIST_CHECK(plan != nullptr && plan->ended);
  delivery_.DropHolds(*plan);
  tenure_.FreePlan(id);
  Tick(now, effects);
}

void Node::Hold(PlanId id, const std::vector<GroupIndex>& groups, bool urgent,
                absl::Time now, Effects& effects) {
  delivery_.Hold(id, groups, urgent, now, effects);
  Tick(now, effects);
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
