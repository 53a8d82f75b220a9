#include "daemon/core/delivery.h"

#include <algorithm>
#include <set>
#include <string>
#include <utility>
#include <vector>

#include "daemon/base/status.h"

namespace hoistd {
namespace {

// How long a prefetch waits for space before it is forgotten.
constexpr absl::Duration kPrefetchPatience = absl::Seconds(60);

}  // namespace

absl::Status Delivery::CheckBring(const BringArgs& args) const {
  return tenure_.CheckBring(args, audit_.Checks(args.copy.key));
}

bool Delivery::Bring(const BringArgs& args, absl::Time now, Effects& effects) {
  if (args.lease) ++counters_.stages;
  if (Copy* copy = copies_.Find(args.copy)) {
    audit_.DropDamaged(args.copy, *copy);
  }
  if (absl::Status s = CheckBring(args); !s.ok()) {
    if (args.lease) ++counters_.stages_refused;
    effects.answers.push_back({args.request, std::move(s)});
    return false;
  }
  if (tenure_.sessions().Find(args.session) != nullptr) {
    tenure_.sessions().Use(args.session, args.copy.key.model);
  }
  Waiter waiter;
  waiter.request = args.request;
  waiter.session = args.session;
  waiter.lease = args.lease;
  waiter.since = now;
  waiter.pin = args.pin;
  waiter.hold = args.hold;
  waiter.memfd = args.memfd;
  waiter.no_wait = args.deadline <= now;
  waiter.deadline = waiter.no_wait ? absl::InfiniteFuture() : args.deadline;
  if (args.lease) {
    tenure_.sessions().Claim(args.session, args.copy,
                             copies_.SpaceOf(args.copy.key));
  }
  Copy& copy = copies_.At(args.copy);
  if (MayGive(waiter, args.copy, copy, now)) {
    Give(waiter, args.copy, copy, now, effects);
    return false;
  }
  waiter.waited = true;
  const Copy* host = copies_.Find({args.copy.key, kHost});
  waiter.nearest = host != nullptr && host->usable()       ? Tier::kHost
                   : copies_.pageable().Has(args.copy.key) ? Tier::kPageable
                                                           : Tier::kDisk;
  if (args.copy.place.at.tier == Tier::kDevice) {
    space_.device(args.copy.place.at.device).RetrySlabs();
  }
  const bool is_new = supply_.needs().Find(args.copy) == nullptr;
  Need& need = supply_.NeedFor(args.copy, args.urgent, effects);
  if (is_new) need.spare = args.spare;
  supply_.AddWaiter(need, waiter);
  return true;
}

absl::Status Delivery::Prefetch(SessionId session, const PrefetchArgs& args,
                                absl::Time now, Effects& effects) {
  for (const GroupIndex group : args.groups) {
    BringArgs bring;
    bring.session = session;
    bring.copy = {{args.model, group}, {args.to, false}};
    HOIST_RETURN_IF_ERROR(CheckBring(bring));
  }
  tenure_.sessions().Use(session, args.model);
  for (const GroupIndex group : args.groups) {
    const CopyRef ref = {{args.model, group}, {args.to, false}};
    if (copies_.At(ref).usable()) continue;
    Need& need = supply_.NeedFor(ref, /*urgent=*/false, effects);
    need.give_up = now + kPrefetchPatience;
    supply_.needs().Changed(need);
  }
  return absl::OkStatus();
}

void Delivery::Hold(PlanId id, const std::vector<GroupIndex>& groups,
                    bool urgent, absl::Time now, Effects& effects) {
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
      Give(waiter, ref, copy, now, effects);
      continue;
    }
    supply_.AddWaiter(supply_.NeedFor(ref, urgent, effects), waiter);
  }
}

void Delivery::DropHolds(const StandingPlan& plan) {
  for (const GroupIndex group : plan.asked) {
    Need* need = supply_.needs().Find({{plan.grant.model, group}, kHost});
    if (need == nullptr) continue;
    std::erase_if(need->waiters, [&](const Waiter& waiter) {
      return waiter.hold == plan.grant.id;
    });
    supply_.needs().Changed(*need);
  }
}

bool Delivery::MayGive(const Waiter& waiter, const CopyRef& ref, Copy& copy,
                       absl::Time now) {
  if (!copy.serves()) return false;
  const bool keeps = waiter.lease || waiter.pin;
  return (!keeps || space_.CheckReservations(ref).ok()) &&
         tenure_.MayOpen(waiter, ref, copy, now).ok();
}

void Delivery::Give(const Waiter& waiter, const CopyRef& ref, Copy& copy,
                    absl::Time now, Effects& effects) {
  copies_.Apply(copy, ResidencyEvent::kUse);
  if (waiter.hold.has_value())
    return HoldArrived(*waiter.hold, ref, copy, effects);
  if (waiter.repair.has_value()) {
    return audit_.Repair({ref.key, *waiter.repair}, copy, now, effects);
  }
  if (waiter.memfd != nullptr) {
    return supply_.Send(ref, copy, waiter, now, effects);
  }
  if (waiter.pin) space_.SetPinned(ref, copy, true);
  Answer answer = {waiter.request};
  if (waiter.lease) {
    if (!waiter.waited) ++counters_.stages_resident;
    counters_.stage_times[static_cast<size_t>(waiter.nearest)].Add(
        now - waiter.since);
    answer.lease = tenure_.Grant(LeaseId(ids_.Next()), waiter, ref, copy, now);
  }
  effects.answers.push_back(std::move(answer));
}

bool Delivery::Give(Need& need, Copy& copy, absl::Time now, Effects& effects) {
  const bool keeps = std::ranges::any_of(
      need.waiters, [](const Waiter& w) { return w.lease || w.pin; });
  if (keeps) {
    need.blocked = {space_.CheckReservations(need.copy), need.copy.place.at,
                    SpaceOf(*copies_.FindGroup(need.copy.key)->group)};
    need.gated = !need.blocked.why.ok();
    if (need.gated) {
      supply_.needs().Block(need);
      // Its memory is promised to plans, some of which may lend it.
      if (need.urgent) AskPlansForRoom(need, now, effects);
      return false;
    }
  }
  std::vector<Waiter> left;
  const size_t all = need.waiters.size();
  for (Waiter& waiter : need.waiters) {
    absl::Status may = tenure_.MayOpen(waiter, need.copy, copy, now);
    if (may.ok()) {
      Give(waiter, need.copy, copy, now, effects);
      continue;
    }
    need.blocked.why = std::move(may);
    left.push_back(std::move(waiter));
  }
  need.waiters = std::move(left);
  need.gated = !need.waiters.empty();
  if (need.gated) {
    supply_.needs().Changed(need);
    supply_.needs().Block(need);
    if (need.waiters.size() == all) return false;
  }
  space_.Changed();  // From now on it can be evicted.
  return !need.gated;
}

bool Delivery::MayTry(Need& need, const Copy& copy, absl::Time now) {
  if (copy.state != Residency::kAbsent || !need.gated) return true;
  need.blocked.alike = false;  // Others are not gated.
  const auto may_open = [&](const Waiter& waiter) {
    const absl::Status may = tenure_.MayOpen(waiter, need.copy, copy, now);
    if (!may.ok()) need.blocked.why = may;  // Else the reason stays.
    return may.ok();
  };
  return std::ranges::any_of(need.waiters, may_open);
}

void Delivery::Refuse(const Waiter& waiter, const CopyRef& ref,
                      absl::Status why, Effects& effects) {
  if (waiter.hold.has_value()) {
    tenure_.plans().Unask(*waiter.hold, ref.key.group);
    effects.held.push_back({*waiter.hold, ref.key.group, std::move(why)});
    return;
  }
  if (waiter.repair.has_value()) {
    return audit_.RepairOver({ref.key, *waiter.repair}, why, effects);
  }
  if (waiter.lease) {
    ++counters_.stages_refused;
    tenure_.sessions().Refuse(waiter.session, ref);
    Note(effects, copies_, EventKind::kStageRefused, ref,
         std::string(why.message()));
  }
  effects.answers.push_back({waiter.request, std::move(why)});
}

void Delivery::HoldArrived(PlanId id, const CopyRef& ref, Copy& copy,
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

void Delivery::AskPlansForRoom(const Need& need, absl::Time now,
                               Effects& effects) {
  const uint64_t bytes = copies_.SpaceOf(need.copy.key);
  if (need.copy.place.at.tier == Tier::kDevice) {
    const auto first = std::ranges::find(need.waiters, false, &Waiter::no_wait);
    if (first == need.waiters.end()) return;
    Loan loan = {Loan::Why::kAdmin, now};  // Without a session.
    if (first->session != SessionId()) {
      loan = {Loan::Why::kNeed, now, first->session, need.copy.key.model};
    }
    tenure_.reclaim().AskForRoom(need.copy.place.at.device, bytes, loan,
                                 effects);
    return;
  }
  std::set<PlanId> waiting;
  for (const Waiter& waiter : need.waiters) {
    if (waiter.hold.has_value()) waiting.insert(*waiter.hold);
  }
  if (waiting.empty()) return;
  if (const auto plan = tenure_.PlanToCrowd(waiting, bytes)) {
    effects.crowded.push_back(*plan);
  }
}

}  // namespace hoistd
