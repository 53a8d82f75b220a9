#include "daemon/core/plan_book.h"

#include <algorithm>
#include <utility>

#include "absl/strings/str_cat.h"
#include "daemon/base/check.h"

namespace hoistd {
namespace {

// The copies that are the plan's residents.
std::vector<CopyRef> ResidentsOf(const PlanGrant& grant) {
  std::vector<CopyRef> residents;
  for (const PlannedGroup& group : grant.groups) {
    if (!group.resident) continue;
    residents.push_back(
        {{grant.model, group.group}, {OnDevice(grant.device), false}});
  }
  return residents;
}

CopyRef OnHostOf(const StandingPlan& plan, GroupIndex group) {
  return {{plan.grant.model, group}, kHost};
}

}  // namespace

PlanBook::PlanBook(std::vector<PromiseBook>& promises, const CopyTable& copies,
                   const SessionBook& sessions, QuotaBook& quota)
    : copies_(copies),
      sessions_(sessions),
      quota_(quota),
      promises_(promises) {}

absl::Status PlanBook::CheckOwn(SessionId session, PlanId id) const {
  const StandingPlan* plan = FindLive(id);
  if (plan != nullptr && plan->session == session) return absl::OkStatus();
  return absl::NotFoundError(
      absl::StrCat("this session has no plan ", id.number(),
                   "; it may have been cleared or replaced before"));
}

absl::Status PlanBook::CheckMore(User uid) const {
  return quota_.Check(uid, Quota::kPlans, 1);
}

void PlanBook::Add(RequestId request, PendingPlan pending) {
  Charge(pending.uid, pending.grant);
  waiting_[request] = std::move(pending);
}

void PlanBook::Block(RequestId request, uint64_t epoch, Blocked why) {
  PendingPlan& pending = waiting_.at(request);
  pending.tried_at = epoch;
  pending.blocked = std::move(why);
}

void PlanBook::Drop(RequestId request) {
  const auto found = waiting_.find(request);
  UnchargeResidents(found->second.uid, found->second.grant);
  Uncharge(found->second.uid, found->second.grant);
  waiting_.erase(found);
}

std::vector<RequestId> PlanBook::Late(absl::Time now) const {
  std::vector<RequestId> late;
  for (const auto& [request, pending] : waiting_) {
    const bool asked = absl::IsUnavailable(pending.blocked.why);
    if (pending.deadline > now || (pending.no_wait && asked)) continue;
    late.push_back(request);
  }
  return late;
}

absl::Time PlanBook::NextDeadline() const {
  absl::Time next = absl::InfiniteFuture();
  for (const auto& [request, pending] : waiting_) {
    if (!pending.no_wait) next = std::min(next, pending.deadline);
  }
  return next;
}

const StandingPlan& PlanBook::Stand(RequestId request, PlanId id,
                                    OwnerId ring_owner, uint64_t ring_offset,
                                    Zone zone) {
  const auto found = waiting_.find(request);
  StandingPlan& plan = plans_[id];
  plan.session = found->second.session;
  plan.uid = found->second.uid;
  plan.grant = std::move(found->second.grant);
  plan.grant.id = id;
  plan.grant.ring_offset = ring_offset;
  plan.ring_owner = ring_owner;
  plan.zone = zone;
  waiting_.erase(found);
  PromiseTo(plan, promises_[plan.grant.device.number()]);
  return plan;
}

void PlanBook::Restore(StandingPlan plan) {
  Charge(plan.uid, plan.grant);
  const PlanId id = plan.grant.id;
  const StandingPlan& stands =
      plans_.emplace(id, std::move(plan)).first->second;
  PromiseTo(stands, promises_[stands.grant.device.number()]);
}

void PlanBook::PromiseTo(const StandingPlan& plan, PromiseBook& book) const {
  book.AddRing(plan.zone, plan.grant.ring_bytes);
  if (plan.ended) return;
  for (const CopyRef& copy : ResidentsOf(plan.grant)) {
    book.Promise(copy, plan.zone, copies_.SpaceOf(copy.key));
  }
}

void PlanBook::Give(PlanId id) {
  StandingPlan& plan = plans_.at(id);
  HOIST_CHECK(!plan.ended && !plan.given);
  plan.given = true;
}

void PlanBook::End(PlanId id) {
  StandingPlan& plan = plans_.at(id);
  HOIST_CHECK(!plan.ended);
  plan.ended = true;
  for (const CopyRef& copy : ResidentsOf(plan.grant)) {
    BookOf(copy).Unpromise(copy);
  }
  UnchargeResidents(plan.uid, plan.grant);
}

void PlanBook::Erase(PlanId id) {
  const auto found = plans_.find(id);
  StandingPlan& plan = found->second;
  HOIST_CHECK(plan.ended && plan.held.empty());
  while (!plan.asked.empty()) Unask(id, *plan.asked.begin());
  promises_[plan.grant.device.number()].RemoveRing(plan.zone,
                                                   plan.grant.ring_bytes);
  Uncharge(plan.uid, plan.grant);
  plans_.erase(found);
}

const StandingPlan* PlanBook::Find(PlanId id) const {
  const auto found = plans_.find(id);
  return found == plans_.end() ? nullptr : &found->second;
}

const StandingPlan* PlanBook::FindLive(PlanId id) const {
  const StandingPlan* plan = Find(id);
  return plan == nullptr || plan->ended ? nullptr : plan;
}

std::vector<PlanId> PlanBook::LiveOf(SessionId session) const {
  std::vector<PlanId> live;
  for (const auto& [id, plan] : plans_) {
    if (plan.session == session && !plan.ended) live.push_back(id);
  }
  return live;
}

std::set<ModelId> PlanBook::Models() const {
  std::set<ModelId> models;
  for (const auto& [id, plan] : plans_) models.insert(plan.grant.model);
  for (const auto& [request, pending] : waiting_) {
    models.insert(pending.grant.model);
  }
  return models;
}

bool PlanBook::Ask(PlanId id, GroupIndex group) {
  StandingPlan& plan = plans_.at(id);
  HOIST_CHECK(!plan.ended && !plan.held.contains(group));
  if (!plan.asked.insert(group).second) return false;
  AddHold(plan, group);
  return true;
}

void PlanBook::Unask(PlanId id, GroupIndex group) {
  const auto found = plans_.find(id);
  if (found == plans_.end() || found->second.asked.erase(group) == 0) return;
  RemoveHold(found->second, group);
}

bool PlanBook::Hold(PlanId id, GroupIndex group) {
  StandingPlan& plan = plans_.at(id);
  if (plan.ended) {
    Unask(id, group);
    return false;
  }
  HOIST_CHECK(plan.asked.erase(group) == 1);
  plan.held.insert(group);
  return true;
}

void PlanBook::Unhold(PlanId id, GroupIndex group) {
  StandingPlan& plan = plans_.at(id);
  HOIST_CHECK(plan.held.erase(group) == 1);
  RemoveHold(plan, group);
}

void PlanBook::AddHold(const StandingPlan& plan, GroupIndex group) {
  const CopyRef copy = OnHostOf(plan, group);
  quota_.Use(plan.uid, copy, copies_.SpaceOf(copy.key));
  ++on_host_[copy.key];
}

void PlanBook::RemoveHold(const StandingPlan& plan, GroupIndex group) {
  const CopyRef copy = OnHostOf(plan, group);
  quota_.Unuse(plan.uid, copy);
  const auto found = on_host_.find(copy.key);
  if (--found->second == 0) on_host_.erase(found);
}

uint64_t PlanBook::RingBytes(const PlanFilter& which) const {
  const auto meant = [&](const auto& plan) {
    return plan.grant.device == which.device &&
           plan.session == which.session.value_or(plan.session) &&
           plan.uid == which.uid.value_or(plan.uid);
  };
  uint64_t bytes = 0;
  for (const auto& [id, plan] : plans_) {
    if (id != which.except && meant(plan)) bytes += plan.grant.ring_bytes;
  }
  for (const auto& [request, pending] : waiting_) {
    if (meant(pending)) bytes += pending.grant.ring_bytes;
  }
  return bytes;
}

std::set<CopyRef> PlanBook::PromisedCopies(DeviceIndex device,
                                           SessionId session,
                                           std::optional<PlanId> except) const {
  const TierAt at = OnDevice(device);
  std::set<CopyRef> promised;
  std::set<CopyRef> leaving;
  for (const auto& [id, plan] : plans_) {
    if (plan.grant.device != device || plan.ended) continue;
    for (const CopyRef& copy : ResidentsOf(plan.grant)) {
      (id == except ? leaving : promised).insert(copy);
    }
  }
  for (const auto& [id, other] : sessions_.all()) {
    for (const auto& [copy, count] : other.claims) {
      if (copy.place.at != at) continue;
      if (id == session && leaving.contains(copy)) continue;
      promised.insert(copy);
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

std::set<CopyRef> PlanBook::OwnCopies(SessionId session, DeviceIndex device,
                                      std::optional<PlanId> except) const {
  const TierAt at = OnDevice(device);
  std::set<CopyRef> own;
  std::set<CopyRef> leaving;
  for (const PlanId id : LiveOf(session)) {
    const PlanGrant& grant = plans_.at(id).grant;
    if (grant.device != device) continue;
    for (const CopyRef& copy : ResidentsOf(grant)) {
      (id == except ? leaving : own).insert(copy);
    }
  }
  for (const auto& [copy, count] : sessions_.At(session).claims) {
    if (copy.place.at == at && !leaving.contains(copy)) own.insert(copy);
  }
  return own;
}

bool PlanBook::Promised(SessionId session, const CopyRef& copy) const {
  for (const auto& [id, plan] : plans_) {
    if (plan.session != session || plan.ended) continue;
    const std::vector<CopyRef> residents = ResidentsOf(plan.grant);
    if (std::count(residents.begin(), residents.end(), copy) > 0) return true;
  }
  return false;
}

std::set<CopyRef> PlanBook::UserCopies(User uid, DeviceIndex device,
                                       std::optional<PlanId> except) const {
  std::set<CopyRef> copies;
  for (const auto& [id, session] : sessions_.all()) {
    if (session.uid() == uid) copies.merge(OwnCopies(id, device, except));
  }
  for (const auto& [request, pending] : waiting_) {
    if (pending.uid != uid || pending.grant.device != device) continue;
    for (const CopyRef& copy : ResidentsOf(pending.grant)) copies.insert(copy);
  }
  return copies;
}

void PlanBook::Charge(User uid, const PlanGrant& grant) {
  quota_.Add(uid, Quota::kPlans, 1);
  quota_.AddBytes(uid, grant.device, grant.ring_bytes);
  for (const CopyRef& copy : ResidentsOf(grant)) {
    quota_.Use(uid, copy, copies_.SpaceOf(copy.key));
  }
}

void PlanBook::UnchargeResidents(User uid, const PlanGrant& grant) {
  for (const CopyRef& copy : ResidentsOf(grant)) quota_.Unuse(uid, copy);
}

void PlanBook::Uncharge(User uid, const PlanGrant& grant) {
  quota_.Remove(uid, Quota::kPlans, 1);
  quota_.RemoveBytes(uid, grant.device, grant.ring_bytes);
}

std::vector<PromiseBook> PlanBook::CountPromises() const {
  std::vector<PromiseBook> counted(promises_.size());
  for (const auto& [id, plan] : plans_) {
    PromiseTo(plan, counted[plan.grant.device.number()]);
  }
  return counted;
}

void PlanBook::Check() const {
  std::map<GroupKey, uint32_t> counted;
  for (const auto& [id, plan] : plans_) {
    for (const GroupIndex group : plan.asked) {
      HOIST_CHECK(!plan.held.contains(group));
      ++counted[{plan.grant.model, group}];
    }
    for (const GroupIndex group : plan.held) {
      ++counted[{plan.grant.model, group}];
    }
  }
  HOIST_CHECK(counted == on_host_);
}

}  // namespace hoistd
