// Plans' promises, their device and host holdings, and the room in a user's
// quota.
#include <algorithm>
#include <limits>
#include <utility>

#include "absl/container/flat_hash_map.h"
#include "absl/strings/str_cat.h"
#include "daemon/base/check.h"
#include "daemon/base/status.h"
#include "daemon/core/tenure.h"

namespace hoistd {
namespace {

absl::Status NoSuchPlan(PlanId plan) {
  return absl::NotFoundError(
      absl::StrCat("this session has no plan ", plan.number(),
                   "; it may have been cleared or replaced before"));
}

absl::Status CheckPlanned(DeviceIndex device, size_t devices,
                          const DeviceNames& names) {
  if (device.number() >= devices) {
    return absl::InvalidArgumentError(absl::StrCat(
        "no device ", device.number(), "; this node has ", names.count()));
  }
  if (!names.IsInPlace(OnDevice(device))) return absl::OkStatus();
  return absl::InvalidArgumentError(
      "what is read in place is leased group by group and not planned: name "
      "the device that the groups are to be streamed to");
}

// Assigns residents, slots, and the order of streamed groups.
void PlaceGroups(const Plan& plan, const std::vector<uint32_t>& order,
                 PlanGrant& grant) {
  std::vector<uint32_t> rank(grant.groups.size());
  uint32_t streamed = 0;
  for (size_t i = 0; i < grant.groups.size(); ++i) {
    grant.groups[i].resident = !plan.slots[i].has_value();
    if (grant.groups[i].resident) continue;
    grant.groups[i].slot = *plan.slots[i];
    rank[i] = streamed++;
  }
  for (const uint32_t i : order) {
    if (!grant.groups[i].resident) grant.lane_order.push_back(rank[i]);
  }
}

}  // namespace

uint64_t Tenure::BytesOf(const std::set<CopyRef>& copies,
                         std::optional<ModelId> but) const {
  uint64_t bytes = 0;
  for (const CopyRef& ref : copies) {
    if (ref.key.model == but && !ref.place.shared && !ref.place.apart) continue;
    bytes += copies_.SpaceOf(ref.key);
  }
  return bytes;
}

// The grant possible now if promised groups of its own model become its
// residents (`but`), or if none does.
uint64_t Tenure::Promisable(SessionId session, const SetPlanArgs& args,
                            std::optional<ModelId> but) const {
  const auto left = [](uint64_t all, uint64_t taken) {
    return taken < all ? all - taken : 0;
  };
  uint64_t room = left(
      space_.device(args.device).capacity(),
      LostTo(args, session) +
          plans_.RingBytes({.device = args.device, .except = args.replaces}) +
          BytesOf(plans_.PromisedCopies(args.device, session, args.replaces),
                  but));
  const uint64_t limit = sessions_.At(session).args.device_budget_bytes;
  room = std::min(room, QuotaRoom(session, args, but));
  if (limit == 0) return room;
  return std::min(room,
                  left(limit, plans_.RingBytes({.device = args.device,
                                                .session = session,
                                                .except = args.replaces}) +
                                  BytesOf(plans_.OwnCopies(session, args.device,
                                                           args.replaces),
                                          but)));
}

// The largest budget known to be enough; 0: none.
uint64_t Tenure::SufficientBudget(SessionId session,
                                  const SetPlanArgs& args) const {
  SetPlanArgs tried = args;
  for (const std::optional<ModelId> but :
       {std::optional<ModelId>(args.model), std::optional<ModelId>()}) {
    tried.budget_bytes = Promisable(session, args, but);
    if (tried.budget_bytes == 0) continue;
    const absl::StatusOr<PlanGrant> grant = MakeGrant(session, tried);
    if (grant.ok() && Fits(session, tried, *grant).ok()) {
      return tried.budget_bytes;
    }
  }
  return 0;
}

absl::StatusOr<PlanGrant> Tenure::MakeGrant(SessionId session,
                                            const SetPlanArgs& args) const {
  const SessionBook::Session* owner = sessions_.Find(session);
  if (owner == nullptr) {
    return absl::NotFoundError("the session is closed; connect again");
  }
  // A user of the model may plan anew: its old plan may be gone by now.
  if (draining_ && !sessions_.Uses(session, args.model)) {
    return absl::UnavailableError(
        "hoistd is draining and sets no new plans; wait for `hoistctl drain "
        "--resume`");
  }
  HOIST_ASSIGN_OR_RETURN(const ModelPtr model, Find(session, args.model));
  HOIST_RETURN_IF_ERROR(models_.CheckShares(owner->args.peer, *model));
  HOIST_RETURN_IF_ERROR(CheckPlanned(args.device, devices_.size(), names_));
  if (args.replaces.has_value()) {
    const StandingPlan* old = plans_.FindLive(*args.replaces);
    if (old == nullptr || old->session != session) {
      return NoSuchPlan(*args.replaces);
    }
  }
  if (args.order.empty()) {
    return absl::InvalidArgumentError(
        "the order is empty; name each group that a pass stages");
  }
  PlanGrant grant;
  PlanProblem problem;
  absl::flat_hash_map<GroupIndex, uint32_t> local;
  for (const GroupIndex index : args.order) {
    if (index.number() >= model->spec->groups.size()) {
      return absl::InvalidArgumentError(
          absl::StrCat("the order names group ", index.number(), "; model ",
                       model->spec->name, " has ", model->spec->groups.size()));
    }
    const auto [it, is_new] =
        local.try_emplace(index, static_cast<uint32_t>(local.size()));
    problem.order.push_back(it->second);
    if (!is_new) continue;
    const Group& group = *model->spec->groups[index.number()];
    problem.bytes.push_back(SpaceOf(group));
    grant.groups.push_back({.group = index, .image_bytes = group.image_bytes});
  }
  const uint64_t limit = owner->args.device_budget_bytes;
  if (limit > 0 && args.budget_bytes > limit) {
    return absl::ResourceExhaustedError(absl::StrCat(
        "the plan asks for ", HumanBytes(args.budget_bytes),
        "; this session may use ", HumanBytes(limit),
        " of a device: ask for that, or connect with a larger budget"));
  }
  problem.budget_bytes = args.budget_bytes;
  if (args.budget_bytes == 0) {
    problem.budget_bytes = SufficientBudget(session, args);
    if (problem.budget_bytes == 0) {
      problem.budget_bytes = Promisable(session, args, std::nullopt);
    }
  }
  absl::StatusOr<Plan> plan = MakePlan(problem);
  if (!plan.ok()) return Annotate(plan.status(), model->spec->name);
  PlaceGroups(*plan, problem.order, grant);
  grant.model = args.model;
  grant.device = args.device;
  grant.budget_bytes = problem.budget_bytes;
  grant.ring_bytes = plan->ring_bytes;
  grant.resident_bytes = plan->resident_bytes;
  grant.streamed_bytes = plan->streamed_bytes;
  grant.lead = plan->lead;
  return grant;
}

// The user's quota left for a plan; `but` as for Promisable.
uint64_t Tenure::QuotaRoom(SessionId session, const SetPlanArgs& args,
                           std::optional<ModelId> but) const {
  const User uid = sessions_.At(session).uid();
  const uint64_t limit = quota_.DeviceLimitOf(uid, args.device);
  if (limit == QuotaLimits::kNone) return limit;
  const uint64_t taken =
      plans_.RingBytes(
          {.device = args.device, .uid = uid, .except = args.replaces}) +
      BytesOf(plans_.UserCopies(uid, args.device, args.replaces), but) +
      space_.slabs().KeptBytes(args.device, uid);
  return limit - std::min(limit, taken);
}

// The plan's device bytes beside these copies.
uint64_t Tenure::AddedBy(const SetPlanArgs& args, const PlanGrant& grant,
                         const std::set<CopyRef>& before) const {
  uint64_t bytes = grant.ring_bytes;
  for (const PlannedGroup& group : grant.groups) {
    const CopyRef ref = {{args.model, group.group},
                         {OnDevice(args.device), false}};
    if (!group.resident || before.contains(ref)) continue;
    bytes += copies_.SpaceOf(ref.key);
  }
  return bytes;
}

absl::Status Tenure::FitsQuota(SessionId session, const SetPlanArgs& args,
                               const PlanGrant& grant) const {
  const User uid = sessions_.At(session).uid();
  const uint64_t limit = quota_.DeviceLimitOf(uid, args.device);
  if (limit == QuotaLimits::kNone) return absl::OkStatus();
  const std::set<CopyRef> before =
      plans_.UserCopies(uid, args.device, args.replaces);
  const uint64_t taken =
      plans_.RingBytes(
          {.device = args.device, .uid = uid, .except = args.replaces}) +
      BytesOf(before, std::nullopt);
  const uint64_t added = AddedBy(args, grant, before);
  if (taken + added <= limit) return absl::OkStatus();
  return absl::ResourceExhaustedError(absl::StrCat(
      "the plan needs ", HumanBytes(added), " more; ", ToString(uid), " holds ",
      HumanBytes(taken), " of ", HumanBytes(limit), " of ",
      names_.Of(OnDevice(args.device)),
      ": release leases or clear plans, or raise quota.device_bytes in "
      "hoistd.toml"));
}

// Whether the device, and the session's own budget, can hold the plan beside
// all earlier promises.
absl::Status Tenure::Fits(SessionId session, const SetPlanArgs& args,
                          const PlanGrant& grant) const {
  const auto added = [&](const std::set<CopyRef>& before) {
    return AddedBy(args, grant, before);
  };
  const std::set<CopyRef> own =
      plans_.OwnCopies(session, args.device, args.replaces);
  const uint64_t own_taken =
      BytesOf(own, std::nullopt) +
      plans_.RingBytes(
          {.device = args.device, .session = session, .except = args.replaces});
  const uint64_t limit = sessions_.At(session).args.device_budget_bytes;
  if (limit > 0 && own_taken + added(own) > limit) {
    return absl::ResourceExhaustedError(absl::StrCat(
        "the plan needs ", HumanBytes(added(own)),
        " more; this session may "
        "use ",
        HumanBytes(limit), " of a device, and ", HumanBytes(own_taken),
        " is taken by its leases and plans: connect with a larger budget"));
  }
  HOIST_RETURN_IF_ERROR(FitsQuota(session, args, grant));
  const uint64_t capacity = space_.device(args.device).capacity();
  const std::set<CopyRef> promised =
      plans_.PromisedCopies(args.device, session, args.replaces);
  const uint64_t taken = BytesOf(promised, std::nullopt);
  const uint64_t rings =
      plans_.RingBytes({.device = args.device, .except = args.replaces});
  if (taken + rings + added(promised) <= capacity) return absl::OkStatus();
  return absl::ResourceExhaustedError(absl::StrCat(
      "the plan needs ", HumanBytes(added(promised)), " more ",
      names_.On(OnDevice(args.device)), "; of ", HumanBytes(capacity), ", ",
      DeviceTaken(args.device, session, args.replaces)));
}

absl::StatusOr<PlanGrant> Tenure::CheckPlan(SessionId session,
                                            const SetPlanArgs& args) const {
  HOIST_ASSIGN_OR_RETURN(PlanGrant grant, MakeGrant(session, args));
  if (!args.replaces.has_value()) {
    HOIST_RETURN_IF_ERROR(plans_.CheckMore(PeerOf(session)->uid));
  }
  const absl::Status fits = Fits(session, args, grant);
  if (fits.ok()) return grant;
  const uint64_t does = SufficientBudget(session, args);
  return absl::ResourceExhaustedError(
      absl::StrCat(std::string(fits.message()),
                   does == 0 ? "; no budget would be enough now"
                             : absl::StrCat("; a budget of ", HumanBytes(does),
                                            " would be enough")));
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
  if (grant.ring_bytes == 0) return {};
  plans_.Give(id);
  return space_.UseSlabs(plan->session, grant.device, grant.ring_offset,
                         grant.ring_bytes);
}

// Bytes unavailable to a plan beside all promises.
uint64_t Tenure::LostTo(const SetPlanArgs& args, SessionId session) const {
  const Zone own = space_.ZoneOf(
      {{args.model, GroupIndex(0)}, {OnDevice(args.device), false}});
  return space_.LostTo(
      args.device, own,
      plans_.PromisedCopies(args.device, session, args.replaces));
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

// Device memory taken or promised, beside a plan of `session`.
std::string Tenure::DeviceTaken(DeviceIndex device, SessionId session,
                                std::optional<PlanId> except) const {
  const std::set<CopyRef> promised =
      plans_.PromisedCopies(device, session, except);
  const uint64_t copies = BytesOf(promised, std::nullopt);
  const uint64_t rings = plans_.RingBytes({.device = device, .except = except});
  const Peer* asker = PeerOf(session);
  if (SeesAll(asker)) {
    return absl::StrCat(HumanBytes(copies),
                        " is leased, pinned or promised to residents and ",
                        HumanBytes(rings),
                        " is in rings (`hoistctl plans` shows who has what)");
  }
  const uint64_t own =
      BytesOf(plans_.UserCopies(asker->uid, device, except), std::nullopt) +
      plans_.RingBytes({.device = device, .uid = asker->uid, .except = except});
  const uint64_t all = copies + rings;
  return absl::StrCat(HumanBytes(own), " is taken by your leases and plans, ",
                      HumanBytes(all - std::min(all, own)),
                      " is pinned or taken by other users");
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

absl::StatusOr<EndedPlan> Tenure::EndPlan(SessionId session, PlanId id) {
  const StandingPlan* plan = plans_.FindLive(id);
  if (plan == nullptr || plan->session != session) return NoSuchPlan(id);
  const EndedPlan ended = StopPlan(id);
  const ModelId model = plan->grant.model;
  const std::vector<PlanId> live = plans_.LiveOf(session);
  const bool others = std::any_of(live.begin(), live.end(), [&](PlanId other) {
    return plans_.Find(other)->grant.model == model;
  });
  if (!others) orders_.Set(session, model, {});
  return ended;
}

std::vector<EndedPlan> Tenure::EndPlansOf(SessionId session) {
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
  const auto left = [](uint64_t limit, uint64_t taken) {
    return limit - std::min(limit, taken);
  };
  // A fifth is left for bytes in transit.
  const uint64_t all = left(options_.host_capacity_bytes / 5 * 4, held_bytes());
  const uint64_t held = left(quota_.LimitOf(uid, Quota::kHeldBytes),
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
  return limit - std::min(limit, HostBytesOf(uid));
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
