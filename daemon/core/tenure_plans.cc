// Plans' promises, their device and host holdings, and the room in a user's
// quota.
#include <algorithm>
#include <limits>
#include <utility>

#include "absl/strings/str_cat.h"
#include "daemon/base/check.h"
#include "daemon/base/status.h"
#include "daemon/core/tenure.h"

namespace hoistd {
namespace {

uint64_t Left(uint64_t limit, uint64_t taken) {
  return limit - std::min(limit, taken);
}

}  // namespace

void Tenure::Plan(RequestId request, PlanRequest asked, absl::Time now,
                  Effects& effects) {
  auto decided = reclaim_.Begin(request, std::move(asked), now, effects);
  if (decided.has_value()) Await(*std::move(decided), now, effects);
}

void Tenure::Spare(RequestId request, SessionId session, const SpareArgs& args,
                   absl::Time now, Effects& effects) {
  Refuses(effects, request,
          PeerOf(session) == nullptr
              ? absl::NotFoundError("the session is closed; connect again")
              : headroom_.Spare(request, session, args, now, effects));
}

void Tenure::DecidePlans(absl::Time now, Effects& effects) {
  while (auto decided = reclaim_.Next(now, effects)) {
    Await(*std::move(decided), now, effects);
  }
  reclaim_.Grow(now, effects);
  headroom_.Keep(now, effects);
}

void Tenure::Await(Reclaim::Decided decided, absl::Time now, Effects& effects) {
  if (!decided.grant.ok()) {
    effects.answers.push_back({decided.request, decided.grant.status()});
    return;
  }
  PendingPlan pending;
  const auto& [session, args] = decided.asked;
  pending.session = session;
  pending.uid = PeerOf(session)->uid;
  pending.grant = *std::move(decided.grant);
  pending.no_wait = args.deadline <= absl::ZeroDuration();
  pending.deadline = now + args.deadline;
  plans_.Add(decided.request, std::move(pending));
  space_.device(args.device).RetrySlabs();
}

std::optional<NodeEvent> Tenure::AdvancePlan(RequestId request, PlanId id,
                                             absl::Time now) {
  const PendingPlan& pending = plans_.waiting().at(request);
  if (pending.tried_at == space_.epoch()) return std::nullopt;
  // Read before the call, whose changes may help a retry.
  const uint64_t epoch = space_.epoch();
  const OwnerId owner = copies_.NewOwner();
  const absl::StatusOr<uint64_t> offset = PlaceRing(pending, owner, now);
  if (!offset.ok()) {
    copies_.DropOwner(owner);
    plans_.Block(request, epoch,
                 {offset.status(), OnDevice(pending.grant.device),
                  pending.grant.ring_bytes + pending.grant.resident_bytes});
    return std::nullopt;
  }
  const StandingPlan& plan = plans_.Stand(
      request, id, owner, *offset, space_.ZoneOf(RingRef(pending.grant)));
  reclaim_.loans().Stand(plan);
  const PlanGrant& grant = plan.grant;
  std::vector<GroupIndex> order;
  for (const PlannedGroup& group : grant.groups) order.push_back(group.group);
  orders_.Set(plan.session, grant.model, std::move(order));
  NodeEvent event;
  event.kind = EventKind::kPlanSet;
  event.session = plan.session;
  event.at = OnDevice(grant.device);
  event.bytes = grant.budget_bytes;
  event.model = copies_.FindModel(grant.model)->model->spec->name;
  event.detail =
      absl::StrCat(HumanBytes(grant.resident_bytes), " resident, ",
                   HumanBytes(grant.streamed_bytes), " streamed a pass");
  return event;
}

absl::StatusOr<uint64_t> Tenure::PlaceRing(const PendingPlan& pending,
                                           OwnerId owner, absl::Time now) {
  HOIST_RETURN_IF_ERROR(MakeRoom(pending, now));
  if (pending.grant.ring_bytes == 0) return uint64_t{0};
  // As an urgent need of the first group.
  return space_.PlaceOnDevice({.copy = RingRef(pending.grant)}, owner,
                              pending.grant.ring_bytes, now);
}

const PlanGrant* Tenure::FindPlan(PlanId id) const {
  const StandingPlan* plan = plans_.FindLive(id);
  return plan == nullptr ? nullptr : &plan->grant;
}

std::vector<SlabUse> Tenure::GiveSlabs(PlanId id) {
  const StandingPlan* plan = plans_.FindLive(id);
  HOIST_CHECK(plan != nullptr && !plan->given);
  const PlanGrant& grant = plan->grant;
  plans_.Give(id);
  if (grant.ring_bytes == 0) return {};
  return space_.UseSlabs(plan->session, grant.device, grant.ring_offset,
                         grant.ring_bytes);
}

// Whether the whole plan can be staged beside others' promises and memory that
// cannot be reclaimed.
absl::Status Tenure::MakeRoom(const PendingPlan& pending, absl::Time now) {
  const PlanGrant& grant = pending.grant;
  const DeviceIndex device = grant.device;
  const Zone own = space_.ZoneOf(RingRef(grant));
  std::set<CopyRef> firm =
      plans_.PromisedCopies(device, pending.session, std::nullopt);
  for (const PlannedGroup& group : grant.groups) {
    if (!group.resident) continue;
    firm.insert({{grant.model, group.group}, {OnDevice(device), false}});
  }
  absl::Status fits = space_.CheckRing(device, own, grant.ring_bytes, firm);
  if (absl::IsResourceExhausted(fits)) return fits;
  HOIST_RETURN_IF_ERROR(CheckOpen(pending.session, device, {}, now));
  if (!fits.ok()) space_.AskForRing(device, own, firm, now);
  return fits;
}

CopyRef Tenure::RingRef(const PlanGrant& grant) {
  return {{grant.model, grant.groups.front().group},
          {OnDevice(grant.device), false}};
}

EndedPlan Tenure::StopPlan(PlanId id) {
  plans_.End(id);
  space_.Changed();
  return {id, plans_.Find(id)->grant.device};
}

absl::StatusOr<EndedPlan> Tenure::EndPlan(SessionId session, PlanId id,
                                          absl::Time now) {
  HOIST_RETURN_IF_ERROR(plans_.CheckOwn(session, id));
  reclaim_.loans().Return(*plans_.Find(id), now);
  const EndedPlan ended = StopPlan(id);
  const ModelId model = plans_.Find(id)->grant.model;
  const std::vector<PlanId> live = plans_.LiveOf(session);
  const bool others = std::any_of(live.begin(), live.end(), [&](PlanId other) {
    return plans_.Find(other)->grant.model == model;
  });
  if (!others) orders_.Set(session, model, {});
  return ended;
}

std::vector<EndedPlan> Tenure::EndPlansOf(SessionId session) {
  reclaim_.Leave(session);
  std::vector<RequestId> waiting;
  for (const auto& [request, pending] : plans_.waiting()) {
    if (pending.session == session) waiting.push_back(request);
  }
  for (const RequestId request : waiting) plans_.Drop(request);
  std::vector<EndedPlan> ended;
  for (const PlanId id : plans_.LiveOf(session)) ended.push_back(StopPlan(id));
  // Including ending ones: a successor has no session for them, and copies into
  // rings end with this hoistd.
  for (const auto& [id, plan] : plans_.standing()) {
    if (plan.session == session) persisted_.Add(PersistedPlanEnd{id});
  }
  return ended;
}

void Tenure::FreePlan(PlanId id) {
  const StandingPlan& plan = *plans_.Find(id);
  const PlanGrant& grant = plan.grant;
  while (!plan.held.empty()) Unhold(plan, *plan.held.begin());
  if (grant.ring_bytes > 0) {
    if (plan.given && sessions_.Find(plan.session) != nullptr) {
      space_.LeaveSlabs(plan.session, grant.device, grant.ring_offset,
                        grant.ring_bytes);
    }
    space_.device(grant.device).Free(grant.ring_offset);
  }
  copies_.DropOwner(plan.ring_owner);
  persisted_.Add(PersistedPlanEnd{id});
  plans_.Erase(id);
  space_.Changed();
}

void Tenure::Unhold(const StandingPlan& plan, GroupIndex group) {
  Copy& copy = copies_.At({{plan.grant.model, group}, kHost});
  HOIST_CHECK(copy.leases > 0);
  plans_.Unhold(plan.grant.id, group);
  if (--copy.leases == 0) space_.Changed();
}

std::optional<CrowdedPlan> Tenure::PlanToCrowd(const std::set<PlanId>& waiting,
                                               uint64_t bytes) const {
  std::optional<CrowdedPlan> crowded;
  uint64_t most = 0;
  for (const auto& [id, plan] : plans_.standing()) {
    if (plan.ended || plan.held.empty()) continue;
    if (waiting.contains(id)) return CrowdedPlan{id, 0};
    uint64_t held = 0;
    for (const GroupIndex group : plan.held) {
      held += copies_.SpaceOf({plan.grant.model, group});
    }
    if (held <= most) continue;
    most = held;
    crowded = {id, bytes};
  }
  return crowded;
}

uint64_t Tenure::HoldableBytes(PlanId id) const {
  const User uid = plans_.Find(id)->uid;
  // A fifth is left for bytes in transit.
  const uint64_t all = Left(space_.CapacityOf(OnHost()) / 5 * 4, held_bytes());
  const uint64_t held = Left(quota_.LimitOf(uid, Quota::kHeldBytes),
                             quota_.Of(uid).Of(Quota::kHeldBytes));
  return std::min({all, held, HostRoom(uid)});
}

uint64_t Tenure::HostBytesOf(User uid) const {
  const Holdings& holdings = quota_.Of(uid);
  uint64_t bytes = holdings.Of(Quota::kPublishedBytes);
  for (const auto& [ref, use] : holdings.uses) {
    if (ref.place != kHost) continue;
    const bool published =
        copies_.FindModel(ref.key.model)->model->owner == uid &&
        copies_.FindGroup(ref.key)->unsaved();
    if (!published) bytes += use.bytes;
  }
  return bytes;
}

// Host bytes left for the user's plans and publications.
uint64_t Tenure::HostRoom(User uid) const {
  const uint64_t limit = quota_.HostLimitOf(uid);
  if (limit == QuotaLimits::kNone) return limit;
  return Left(limit, HostBytesOf(uid));
}

uint64_t Tenure::held_bytes() const {
  uint64_t bytes = 0;
  std::set<OwnerId> parts;  // Several groups may hold one.
  for (const auto& [key, plans] : plans_.on_host()) {
    if (!space_.parts().Has(key)) {
      bytes += copies_.SpaceOf(key);
      continue;
    }
    for (const OwnerId part : space_.parts().PartsOf(key)) {
      if (parts.insert(part).second) bytes += space_.parts().SpaceOf(part);
    }
  }
  return bytes;
}

}  // namespace hoistd
