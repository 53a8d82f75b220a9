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

// Device copies that others count on: leased, pinned, or promised to a plan.
// What only `except` needs, which is about to go, is left out.
std::set<CopyRef> Node::PromisedCopies(DeviceIndex device, SessionId session,
                                       std::optional<PlanId> except) const {
  const TierAt at = OnDevice(device);
  std::set<CopyRef> promised;
  std::set<CopyRef> leaving;
  for (const auto& [id, plan] : plans_) {
    if (plan.grant.device != device || plan.ended) continue;
    for (const PlannedGroup& group : plan.grant.groups) {
      if (!group.resident) continue;
      const CopyRef ref = {{plan.grant.model, group.group}, {at, false}};
      (id == except ? leaving : promised).insert(ref);
    }
  }
  for (const auto& [id, other] : sessions_.all()) {
    for (const auto& [ref, count] : other.claims) {
      if (ref.place.at != at) continue;
      if (id == session && leaving.contains(ref)) continue;
      promised.insert(ref);
    }
  }
  for (const auto& [id, model] : copies_.models()) {
    for (uint32_t g = 0; g < model->groups.size(); ++g) {
      for (const auto& [place, copy] : model->groups[g].copies) {
        if (place.at == at && copy.pinned) {
          promised.insert({{id, GroupIndex(g)}, place});
        }
      }
    }
  }
  return promised;
}

uint64_t Node::RingBytes(DeviceIndex device, std::optional<SessionId> session,
                         std::optional<PlanId> except) const {
  uint64_t bytes = 0;
  for (const auto& [id, plan] : plans_) {
    if (plan.grant.device != device || id == except) continue;
    if (session.has_value() && plan.session != *session) continue;
    bytes += plan.grant.ring_bytes;
  }
  for (const auto& [request, pending] : pending_plans_) {
    if (pending.grant.device != device) continue;
    if (session.has_value() && pending.session != *session) continue;
    bytes += pending.grant.ring_bytes;
  }
  return bytes;
}

// Device copies that only this session's own budget counts: its leases, and the
// residents of its plans.
std::set<CopyRef> Node::OwnCopies(SessionId session, DeviceIndex device,
                                  std::optional<PlanId> except) const {
  const TierAt at = OnDevice(device);
  std::set<CopyRef> own;
  std::set<CopyRef> leaving;
  for (const auto& [id, plan] : plans_) {
    if (plan.session != session || plan.grant.device != device || plan.ended) {
      continue;
    }
    for (const PlannedGroup& group : plan.grant.groups) {
      if (!group.resident) continue;
      (id == except ? leaving : own)
          .insert({{plan.grant.model, group.group}, {at, false}});
    }
  }
  for (const auto& [ref, count] : sessions_.At(session).claims) {
    if (ref.place.at == at && !leaving.contains(ref)) own.insert(ref);
  }
  return own;
}

uint64_t Node::BytesOf(const std::set<CopyRef>& copies,
                       std::optional<ModelId> but) const {
  uint64_t bytes = 0;
  for (const CopyRef& ref : copies) {
    if (ref.key.model == but && !ref.place.shared) continue;
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
          RingBytes(args.device, std::nullopt, args.replaces) +
          BytesOf(PromisedCopies(args.device, session, args.replaces), but));
  const uint64_t limit = sessions_.At(session).args.device_budget_bytes;
  room = std::min(room, QuotaRoom(session, args, but));
  if (limit == 0) return room;
  return std::min(
      room,
      left(limit,
           RingBytes(args.device, session, args.replaces) +
               BytesOf(OwnCopies(session, args.device, args.replaces), but)));
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
  HOIST_RETURN_IF_ERROR(CheckShares(owner->args.peer, *model));
  if (args.device.number() >= devices_.size()) {
    return absl::InvalidArgumentError(
        absl::StrCat("no device ", args.device.number(), "; this node has ",
                     devices_.size()));
  }
  if (args.replaces.has_value()) {
    const auto old = plans_.find(*args.replaces);
    if (old == plans_.end() || old->second.session != session ||
        old->second.ended) {
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
  const std::set<CopyRef> own = OwnCopies(session, args.device, args.replaces);
  const uint64_t own_taken = BytesOf(own, std::nullopt) +
                             RingBytes(args.device, session, args.replaces);
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
      PromisedCopies(args.device, session, args.replaces);
  const uint64_t taken = BytesOf(promised, std::nullopt);
  const uint64_t rings = RingBytes(args.device, std::nullopt, args.replaces);
  if (taken + rings + added(promised) <= capacity) return absl::OkStatus();
  return absl::ResourceExhaustedError(absl::StrCat(
      "the plan needs ", HumanBytes(added(promised)), " more on ",
      ToString(OnDevice(args.device)), "; of ", HumanBytes(capacity), ", ",
      DeviceTaken(args.device, session, args.replaces)));
}

absl::Status Node::CheckPromise(SessionId session, const SetPlanArgs& args,
                                const PlanGrant& grant) const {
  if (!args.replaces.has_value()) {
    HOIST_RETURN_IF_ERROR(quota_.Check(PeerOf(session)->uid, Quota::kPlans, 1));
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
  ChargePlan(pending.uid, pending.grant);
  spaces_[args.device.number()]->RetrySlabs();
  pending_plans_[request] = std::move(pending);
  Tick(now, effects);
}

void Node::AdvancePlans(absl::Time now, Effects& effects) {
  std::vector<RequestId> requests;
  for (const auto& [request, pending] : pending_plans_) {
    requests.push_back(request);
  }
  for (const RequestId request : requests) {
    AdvancePending(request, pending_plans_.at(request), now, effects);
  }
}

// Gives the ring its space, once there is memory for all of the plan.
absl::Status Node::PlaceRing(PendingPlan& pending, OwnerId owner,
                             absl::Time now, Effects& effects) {
  HOIST_RETURN_IF_ERROR(MakeRoom(pending, now, effects));
  if (pending.grant.ring_bytes == 0) return absl::OkStatus();
  // For the values of what could be evicted: an urgent need of the first group.
  Need need;
  need.copy = RingRef(pending.grant);
  need.urgent = true;
  HOIST_ASSIGN_OR_RETURN(
      pending.grant.ring_offset,
      AllocateDevice(need.copy, owner, pending.grant.ring_bytes, need, now,
                     effects));
  return absl::OkStatus();
}

void Node::AdvancePending(RequestId request, PendingPlan& pending,
                          absl::Time now, Effects& effects) {
  if (pending.tried_at == space_epoch_) return;
  pending.tried_at = space_epoch_;
  const OwnerId owner = copies_.NewOwner();
  absl::Status placed = PlaceRing(pending, owner, now, effects);
  if (!placed.ok()) {
    copies_.DropOwner(owner);
    pending.blocked = {std::move(placed), OnDevice(pending.grant.device),
                       pending.grant.ring_bytes + pending.grant.resident_bytes};
    return;
  }
  PendingPlan ready = std::move(pending);
  pending_plans_.erase(request);
  PlanStands(request, std::move(ready), owner, effects);
}

void Node::ExpirePlans(absl::Time now, Effects& effects) {
  for (auto it = pending_plans_.begin(); it != pending_plans_.end();) {
    // Those who hold slabs open are asked in any case: they answer at once.
    const bool asked = absl::IsUnavailable(it->second.blocked.why);
    if (it->second.deadline > now || (it->second.no_wait && asked)) {
      ++it;
      continue;
    }
    effects.answers.push_back(
        {it->first,
         absl::ResourceExhaustedError(absl::StrCat(
             "no space for the plan: ",
             TextFor(PeerOf(it->second.session), it->second.blocked)))});
    UnchargeResidents(it->second.uid, it->second.grant);
    UnchargePlan(it->second.uid, it->second.grant);
    it = pending_plans_.erase(it);
  }
}

void Node::PlanStands(RequestId request, PendingPlan pending,
                      OwnerId ring_owner, Effects& effects) {
  const PlanId id(++last_id_);
  PlanGrant& grant = pending.grant;
  grant.id = id;
  std::vector<GroupIndex> order;
  for (const PlannedGroup& group : grant.groups) order.push_back(group.group);
  orders_.Set(pending.session, grant.model, std::move(order));
  NodeEvent event;
  event.kind = "plan-set";
  event.session = pending.session;
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
  PlanEntry& entry = plans_[id];
  entry.session = pending.session;
  entry.uid = pending.uid;
  entry.grant = std::move(grant);
  entry.ring_owner = ring_owner;
  PromiseResidents(entry.grant, promises_);
}

const PlanGrant* Node::FindPlan(PlanId plan) const {
  const auto found = plans_.find(plan);
  if (found == plans_.end() || found->second.ended) return nullptr;
  return &found->second.grant;
}

std::vector<SlabUse> Node::GiveSlabs(PlanId id) {
  PlanEntry& plan = plans_.at(id);
  HOIST_CHECK(!plan.ended && !plan.given);
  if (plan.grant.ring_bytes == 0) return {};
  plan.given = true;
  return NewSlabs(plan.session, plan.grant.device, plan.grant.ring_offset,
                  plan.grant.ring_bytes);
}

absl::Status Node::EndPlan(SessionId session, PlanId id, absl::Time now,
                           Effects& effects) {
  const auto found = plans_.find(id);
  if (found == plans_.end() || found->second.session != session ||
      found->second.ended) {
    return NoSuchPlan(id);
  }
  PlanEntry& plan = found->second;
  plan.ended = true;
  EndPromise(plan.grant);
  UnchargeResidents(plan.uid, plan.grant);
  effects.ended.push_back({id, plan.grant.device});
  bool others = false;
  for (const auto& [other_id, other] : plans_) {
    others |= other.session == session && !other.ended &&
              other.grant.model == plan.grant.model;
  }
  if (!others) orders_.Set(session, plan.grant.model, {});
  NodeEvent event;
  event.kind = "plan-ended";
  event.session = session;
  event.at = OnDevice(plan.grant.device);
  effects.events.push_back(std::move(event));
  Tick(now, effects);
  return absl::OkStatus();
}

void Node::EndPlansOf(SessionId session, Effects& effects) {
  std::erase_if(pending_plans_, [&](const auto& p) {
    if (p.second.session != session) return false;
    UnchargeResidents(p.second.uid, p.second.grant);
    UnchargePlan(p.second.uid, p.second.grant);
    return true;
  });
  for (auto& [id, plan] : plans_) {
    if (plan.session != session || plan.ended) continue;
    plan.ended = true;
    EndPromise(plan.grant);
    UnchargeResidents(plan.uid, plan.grant);
    effects.ended.push_back({id, plan.grant.device});
  }
}

void Node::FreePlan(PlanId id, absl::Time now, Effects& effects) {
  const auto found = plans_.find(id);
  HOIST_CHECK(found != plans_.end() && found->second.ended);
  PlanEntry& plan = found->second;
  while (!plan.held.empty()) DropHold(plan, *plan.held.begin());
  for (const GroupIndex group : plan.asked) {
    Need* need = needs_.Find({{plan.grant.model, group}, kHost});
    if (need == nullptr) continue;
    std::erase_if(need->waiters, [&](const Waiter& w) { return w.hold == id; });
    needs_.Changed(*need);
  }
  for (const GroupIndex group : plan.asked) {
    quota_.Unuse(plan.uid, {{plan.grant.model, group}, kHost});
  }
  UnchargePlan(plan.uid, plan.grant);
  if (plan.grant.ring_bytes > 0) {
    if (plan.given && sessions_.Find(plan.session) != nullptr) {
      LeaveSlabs(plan.session, plan.grant.device, plan.grant.ring_offset,
                 plan.grant.ring_bytes);
    }
    spaces_[plan.grant.device.number()]->Free(plan.grant.ring_offset);
  }
  copies_.DropOwner(plan.ring_owner);
  plans_.erase(found);
  ++space_epoch_;
  Tick(now, effects);
}

void Node::Hold(PlanId id, const std::vector<GroupIndex>& groups, bool urgent,
                absl::Time now, Effects& effects) {
  const auto found = plans_.find(id);
  if (found == plans_.end() || found->second.ended) return;
  PlanEntry& plan = found->second;
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
    if (!plan.asked.insert(group).second) {
      // It may have been in no hurry before.
      if (urgent && needs_.Find(ref)) NeedFor(ref, true, effects);
      continue;
    }
    quota_.Use(plan.uid, ref, bytes);
    if (room != QuotaLimits::kNone) room = HostRoom(plan.uid);
    BringArgs bring;
    bring.copy = ref;
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
  const auto found = plans_.find(id);
  HOIST_CHECK(found != plans_.end());  // FreePlan takes its waiters along.
  PlanEntry& plan = found->second;
  plan.asked.erase(ref.key.group);
  if (plan.ended) return quota_.Unuse(plan.uid, ref);
  ++copy.leases;
  copy.fresh = false;
  plan.held.insert(ref.key.group);
  effects.held.push_back({id, ref.key.group, copy.offset});
}

void Node::DropHold(PlanEntry& plan, GroupIndex group) {
  Copy& copy = copies_.At({{plan.grant.model, group}, kHost});
  HOIST_CHECK(copy.leases > 0 && plan.held.erase(group) == 1);
  quota_.Unuse(plan.uid, {{plan.grant.model, group}, kHost});
  if (--copy.leases == 0) ++space_epoch_;
}

void Node::Unhold(PlanId id, GroupIndex group, absl::Time now,
                  Effects& effects) {
  const auto found = plans_.find(id);
  if (found == plans_.end() || !found->second.held.contains(group)) return;
  copies_.At({{found->second.grant.model, group}, kHost}).last_use = now;
  DropHold(found->second, group);
  Tick(now, effects);
}

void Node::PlanUsed(PlanId id, GroupIndex group, absl::Time now) {
  const auto found = plans_.find(id);
  if (found == plans_.end()) return;
  orders_.Staged(found->second.session, {found->second.grant.model, group},
                 now);
}

}  // namespace hoistd
