// Plans: what they are promised, their rings, and what they hold on the host.
#include <algorithm>
#include <limits>
#include <utility>

#include "absl/container/flat_hash_map.h"
#include "absl/strings/str_cat.h"
#include "daemon/base/check.h"
#include "daemon/base/status.h"
#include "daemon/core/node.h"

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

// Who is resident, who has which slot, and the order of those that stream.
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

uint64_t Node::BytesOf(const std::set<CopyRef>& copies,
                       std::optional<ModelId> but) const {
  uint64_t bytes = 0;
  for (const CopyRef& ref : copies) {
    if (ref.key.model == but && !ref.place.shared && !ref.place.apart) continue;
    bytes += copies_.SpaceOf(ref.key);
  }
  return bytes;
}

// What a plan could be granted now, if its own model's groups that are promised
// already became its residents (`but`), or if none did.
uint64_t Node::Promisable(SessionId session, const SetPlanArgs& args,
                          std::optional<ModelId> but) const {
  const auto left = [](uint64_t all, uint64_t taken) {
    return taken < all ? all - taken : 0;
  };
  uint64_t room = left(
      spaces_[args.device.number()]->capacity(),
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

// The largest budget that is known to do; 0: none is.
uint64_t Node::BudgetThatDoes(SessionId session,
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

absl::StatusOr<PlanGrant> Node::MakeGrant(SessionId session,
                                          const SetPlanArgs& args) const {
  const SessionBook::Session* owner = sessions_.Find(session);
  if (owner == nullptr) {
    return absl::NotFoundError("the session is closed; connect again");
  }
  if (draining_) {
    return absl::UnavailableError("hoistd is draining and stages nothing");
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
    problem.budget_bytes = BudgetThatDoes(session, args);
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

// Whether the device, and the session's own budget, can hold the plan beside
// all that was promised before.
absl::Status Node::Fits(SessionId session, const SetPlanArgs& args,
                        const PlanGrant& grant) const {
  const auto added = [&](const std::set<CopyRef>& before) {
    uint64_t bytes = grant.ring_bytes;
    for (const PlannedGroup& group : grant.groups) {
      const CopyRef ref = {{args.model, group.group},
                           {OnDevice(args.device), false}};
      if (!group.resident || before.contains(ref)) continue;
      bytes += copies_.SpaceOf(ref.key);
    }
    return bytes;
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
  const uint64_t capacity = spaces_[args.device.number()]->capacity();
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

absl::Status Node::CheckPromise(SessionId session, const SetPlanArgs& args,
                                const PlanGrant& grant) const {
  if (!args.replaces.has_value()) {
    HOIST_RETURN_IF_ERROR(plans_.CheckMore(PeerOf(session)->uid));
  }
  absl::Status fits = Fits(session, args, grant);
  if (fits.ok()) return fits;
  const uint64_t does = BudgetThatDoes(session, args);
  return absl::ResourceExhaustedError(absl::StrCat(
      std::string(fits.message()),
      does == 0
          ? "; no budget would do now"
          : absl::StrCat("; a budget of ", HumanBytes(does), " would do")));
}

absl::Status Node::CheckPlan(SessionId session, const SetPlanArgs& args) const {
  HOIST_ASSIGN_OR_RETURN(const PlanGrant grant, MakeGrant(session, args));
  return CheckPromise(session, args, grant);
}

void Node::SetPlan(RequestId request, SessionId session,
                   const SetPlanArgs& args, absl::Time now, Effects& effects) {
  absl::StatusOr<PlanGrant> grant = MakeGrant(session, args);
  absl::Status status = grant.status();
  if (status.ok()) status = CheckPromise(session, args, *grant);
  if (!status.ok()) {
    effects.answers.push_back({request, std::move(status)});
    return;
  }
  PendingPlan pending;
  pending.session = session;
  pending.uid = PeerOf(session)->uid;
  pending.grant = *std::move(grant);
  pending.no_wait = args.deadline <= absl::ZeroDuration();
  pending.deadline = now + args.deadline;
  plans_.Add(request, std::move(pending));
  spaces_[args.device.number()]->RetrySlabs();
  Tick(now, effects);
}

void Node::AdvancePlans(absl::Time now, Effects& effects) {
  std::vector<RequestId> requests;
  for (const auto& [request, pending] : plans_.waiting()) {
    requests.push_back(request);
  }
  for (const RequestId request : requests) AdvancePlan(request, now, effects);
}

// Gives the ring its space, once there is memory for all of the plan.
absl::StatusOr<uint64_t> Node::PlaceRing(const PendingPlan& pending,
                                         OwnerId owner, absl::Time now,
                                         Effects& effects) {
  HOIST_RETURN_IF_ERROR(MakeRoom(pending, now, effects));
  if (pending.grant.ring_bytes == 0) return uint64_t{0};
  // For the values of what could be evicted: an urgent need of the first group.
  Need need;
  need.copy = RingRef(pending.grant);
  need.urgent = true;
  return AllocateDevice(need.copy, owner, pending.grant.ring_bytes, need, now,
                        effects);
}

void Node::AdvancePlan(RequestId request, absl::Time now, Effects& effects) {
  const PendingPlan& pending = plans_.waiting().at(request);
  if (pending.tried_at == space_epoch_) return;
  // Before this: what it changes may help.
  const uint64_t epoch = space_epoch_;
  const PlanGrant& grant = pending.grant;
  const OwnerId owner = copies_.NewOwner();
  const absl::StatusOr<uint64_t> offset =
      PlaceRing(pending, owner, now, effects);
  if (!offset.ok()) {
    copies_.DropOwner(owner);
    return plans_.Block(request, epoch,
                        {offset.status(), OnDevice(grant.device),
                         grant.ring_bytes + grant.resident_bytes});
  }
  PlanStands(request,
             plans_.Stand(request, PlanId(++last_id_), owner, *offset,
                          ZoneOf(RingRef(grant))),
             effects);
}

void Node::ExpirePlans(absl::Time now, Effects& effects) {
  for (const RequestId request : plans_.Late(now)) {
    const PendingPlan& pending = plans_.waiting().at(request);
    effects.answers.push_back(
        {request, absl::ResourceExhaustedError(absl::StrCat(
                      "no space for the plan: ",
                      TextFor(PeerOf(pending.session), pending.blocked)))});
    plans_.Drop(request);
  }
}

void Node::PlanStands(RequestId request, const StandingPlan& plan,
                      Effects& effects) {
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
  effects.events.push_back(std::move(event));
  Answer answer = {request};
  answer.plan = grant;
  effects.answers.push_back(std::move(answer));
}

const PlanGrant* Node::FindPlan(PlanId id) const {
  const StandingPlan* plan = plans_.FindLive(id);
  return plan == nullptr ? nullptr : &plan->grant;
}

std::vector<SlabUse> Node::GiveSlabs(PlanId id) {
  const StandingPlan* plan = plans_.FindLive(id);
  HOIST_CHECK(plan != nullptr && !plan->given);
  const PlanGrant& grant = plan->grant;
  if (grant.ring_bytes == 0) return {};
  plans_.Give(id);
  return NewSlabs(plan->session, grant.device, grant.ring_offset,
                  grant.ring_bytes);
}

void Node::StopPlan(PlanId id, Effects& effects) {
  plans_.End(id);
  ++space_epoch_;
  effects.ended.push_back({id, plans_.Find(id)->grant.device});
}

absl::Status Node::EndPlan(SessionId session, PlanId id, absl::Time now,
                           Effects& effects) {
  const StandingPlan* plan = plans_.FindLive(id);
  if (plan == nullptr || plan->session != session) return NoSuchPlan(id);
  StopPlan(id, effects);
  const ModelId model = plan->grant.model;
  const std::vector<PlanId> live = plans_.LiveOf(session);
  const bool others = std::any_of(live.begin(), live.end(), [&](PlanId other) {
    return plans_.Find(other)->grant.model == model;
  });
  if (!others) orders_.Set(session, model, {});
  NodeEvent event;
  event.kind = EventKind::kPlanEnded;
  event.session = session;
  event.at = OnDevice(plan->grant.device);
  effects.events.push_back(std::move(event));
  Tick(now, effects);
  return absl::OkStatus();
}

void Node::EndPlansOf(SessionId session, Effects& effects) {
  std::vector<RequestId> waiting;
  for (const auto& [request, pending] : plans_.waiting()) {
    if (pending.session == session) waiting.push_back(request);
  }
  for (const RequestId request : waiting) plans_.Drop(request);
  for (const PlanId id : plans_.LiveOf(session)) StopPlan(id, effects);
  // Those too that are ending: a successor knows no session of them, and copies
  // into rings end with their hoistd.
  for (const auto& [id, plan] : plans_.standing()) {
    if (plan.session == session) Keep(KeptPlanGone{id});
  }
}

void Node::FreePlan(PlanId id, absl::Time now, Effects& effects) {
  const StandingPlan* plan = plans_.Find(id);
  HOIST_CHECK(plan != nullptr && plan->ended);
  const PlanGrant& grant = plan->grant;
  while (!plan->held.empty()) DropHold(*plan, *plan->held.begin());
  for (const GroupIndex group : plan->asked) {
    Need* need = needs_.Find({{grant.model, group}, kHost});
    if (need == nullptr) continue;
    std::erase_if(need->waiters, [&](const Waiter& w) { return w.hold == id; });
    needs_.Changed(*need);
  }
  if (grant.ring_bytes > 0) {
    if (plan->given && sessions_.Find(plan->session) != nullptr) {
      LeaveSlabs(plan->session, grant.device, grant.ring_offset,
                 grant.ring_bytes);
    }
    spaces_[grant.device.number()]->Free(grant.ring_offset);
  }
  copies_.DropOwner(plan->ring_owner);
  Keep(KeptPlanGone{id});
  plans_.Erase(id);
  ++space_epoch_;
  Tick(now, effects);
}

void Node::Hold(PlanId id, const std::vector<GroupIndex>& groups, bool urgent,
                absl::Time now, Effects& effects) {
  const StandingPlan* found = plans_.FindLive(id);
  if (found == nullptr) return;
  const StandingPlan& plan = *found;
  uint64_t room = HostRoom(plan.uid);
  for (const GroupIndex group : groups) {
    const CopyRef ref = {{plan.grant.model, group}, kHost};
    const uint64_t bytes = copies_.SpaceOf(ref.key);
    if (plan.held.contains(group)) continue;
    if (!urgent && !plan.asked.contains(group) && !quota_.Uses(plan.uid, ref) &&
        (bytes > room ||
         !quota_.Check(plan.uid, Quota::kHeldBytes, bytes).ok())) {
      continue;  // It is asked for urgently if the plan cannot do without.
    }
    if (!plans_.Ask(id, group)) {
      // It may have been in no hurry before.
      if (urgent && needs_.Find(ref)) NeedFor(ref, true, effects);
      continue;
    }
    if (room != QuotaLimits::kNone) room = HostRoom(plan.uid);
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
    AddWaiter(NeedFor(ref, urgent, effects), waiter);
  }
  Tick(now, effects);
}

void Node::HoldArrived(PlanId id, const CopyRef& ref, Copy& copy,
                       Effects& effects) {
  // There is one: FreePlan takes its waiters along.
  if (!plans_.Hold(id, ref.key.group)) return;
  ++copy.leases;
  copy.fresh = false;
  ImageRanges ranges = RangesOf(ref, copy);
  if (ranges.empty()) {
    ranges.push_back(
        {copy.offset, 0, SpaceOf(*copies_.FindGroup(ref.key)->group)});
  }
  effects.held.push_back({id, ref.key.group, std::move(ranges)});
}

// The need, which a plan cannot go on without, has no room on the host: what
// plans may hold is not promised, since others publish and hold too. The plan
// itself makes room, or, if it holds nothing, the one that holds most.
void Node::AskPlansForRoom(const Need& need, Effects& effects) const {
  const StandingPlan* most = nullptr;
  uint64_t most_bytes = 0;
  std::set<PlanId> waiting;
  for (const Waiter& waiter : need.waiters) {
    if (waiter.hold.has_value()) waiting.insert(*waiter.hold);
  }
  if (waiting.empty()) return;
  for (const auto& [id, plan] : plans_.standing()) {
    if (plan.ended || plan.held.empty()) continue;
    if (waiting.contains(id)) {
      effects.crowded.push_back({id, 0});
      return;
    }
    uint64_t bytes = 0;
    for (const GroupIndex group : plan.held) {
      bytes += copies_.SpaceOf({plan.grant.model, group});
    }
    if (bytes <= most_bytes) continue;
    most_bytes = bytes;
    most = &plan;
  }
  if (most == nullptr) return;
  effects.crowded.push_back({most->grant.id, copies_.SpaceOf(need.copy.key)});
}

void Node::DropHold(const StandingPlan& plan, GroupIndex group) {
  Copy& copy = copies_.At({{plan.grant.model, group}, kHost});
  HOIST_CHECK(copy.leases > 0);
  plans_.Unhold(plan.grant.id, group);
  if (--copy.leases == 0) ++space_epoch_;
}

void Node::Unhold(PlanId id, GroupIndex group, absl::Time now,
                  Effects& effects) {
  const StandingPlan* plan = plans_.Find(id);
  if (plan == nullptr || !plan->held.contains(group)) return;
  copies_.At({{plan->grant.model, group}, kHost}).last_use = now;
  DropHold(*plan, group);
  Tick(now, effects);
}

void Node::PlanUsed(PlanId id, GroupIndex group, absl::Time now) {
  const StandingPlan* plan = plans_.Find(id);
  if (plan == nullptr) return;
  orders_.Staged(plan->session, {plan->grant.model, group}, now);
}

}  // namespace hoistd
