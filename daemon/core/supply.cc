#include "daemon/core/supply.h"

#include <algorithm>
#include <iterator>
#include <set>

#include "absl/strings/str_cat.h"

namespace hoistd {
namespace {

// The interval of checks whether bytes without waiters still move.
constexpr absl::Duration kArrivalPatience = absl::Seconds(60);

}  // namespace

Supply::Supply(const NodeOptions& options, const DeviceNames& names,
               CopyTable& copies, ModelBook& models, QuotaBook& quota,
               SpillBook& disk, Space& space, PersistedLog& persisted,
               Counters& counters)
    : options_(options),
      names_(names),
      copies_(copies),
      models_(models),
      quota_(quota),
      disk_(disk),
      space_(space),
      persisted_(persisted),
      counters_(counters),
      transfers_(copies),
      saver_(options, names, copies, quota, disk, space, transfers_, persisted,
             counters),
      restored_(options, copies, models, space, transfers_) {}

void Supply::FollowSpace(Effects& effects) {
  SpaceWork work = space_.TakeWork();
  effects.slabs.insert(effects.slabs.end(), work.slabs.begin(),
                       work.slabs.end());
  std::ranges::move(work.asks, std::back_inserter(effects.asks));
  for (const CopyRef& ref : work.dropped) {
    NoteEviction(effects, copies_, counters_, ref, copies_.At(ref).left->why);
  }
  std::ranges::move(work.forgotten, std::back_inserter(work_.forgotten));
  for (const auto& [key, how] : work.spills) saver_.MakeRoom(key, how, effects);
}

Need& Supply::NeedFor(const CopyRef& copy, bool urgent, Effects& effects) {
  Need* found = needs_.Find(copy);
  Need& need = found != nullptr ? *found : needs_.Add(copy, ++last_age_);
  if (urgent && !need.urgent) {
    // Somebody now waits for a former prefetch, of this copy or of the host's.
    need.urgent = true;
    need.spare.reset();
    need.tried_at = 0;
    std::set<TransferId> fillers;
    for (const CopyRef& ref : {copy, CopyRef{copy.key, kHost}}) {
      const Copy* filling = copies_.Find(ref);
      if (filling != nullptr && filling->filling.has_value()) {
        fillers.insert(*filling->filling);
      }
    }
    if (space_.parts().Has(copy.key)) {
      for (const TransferId id : space_.parts().FillersOf(copy.key))
        fillers.insert(id);
    }
    for (const TransferId id : fillers) transfers_.Hurry(id, effects);
    needs_.Changed(need);
    needs_.Wake(copy);
  }
  return need;
}

void Supply::AddWaiter(Need& need, const Waiter& waiter) {
  need.waiters.push_back(waiter);
  need.tried_at = 0;
  needs_.Changed(need);
  needs_.Wake(need.copy);
}

SpaceClaim Supply::ClaimOf(const Need& need) {
  return {need.copy, need.urgent, need.urgent || !need.waiters.empty(),
          need.spare};
}

// Gives the absent copy space; false: none now, see need.blocked.
bool Supply::Reserve(const CopyRef& ref, Copy& copy, Need& need, absl::Time now,
                     Effects& effects) {
  if (need.tried_at == space_.epoch()) return false;  // Nothing has changed.
  // Read before the call, whose changes may help a retry.
  const uint64_t epoch = space_.epoch();
  absl::Status reserved = space_.Reserve(ref, copy, ClaimOf(need), now);
  FollowSpace(effects);
  if (reserved.ok()) return true;
  need.blocked = {std::move(reserved), ref.place.at, copies_.SpaceOf(ref.key),
                  ref.place == kHost && !need.spare};
  need.tried_at = epoch;
  return false;
}

Supply::Progress Supply::Advance(Need& need, absl::Time now, Effects& effects) {
  Copy& copy = copies_.At(need.copy);
  needs_.Rest(need);
  if (copy.state == Residency::kAbsent) {
    if (const Need* older = needs_.CrowdedBy(need)) {
      need.blocked = older->blocked;
      needs_.Block(need);
      return Progress::kComing;
    }
    const bool host = need.copy.place.at.tier == Tier::kHost;
    if (host ? !BringToHost(need.copy, copy, need, now, effects)
             : !Reserve(need.copy, copy, need, now, effects)) {
      needs_.Block(need);
      return Progress::kNoSpace;
    }
    need.gated = false;  // While it is on its way its place is safe.
  }
  if (copy.state == Residency::kReserved)
    AdvanceDeviceFill(need, copy, now, effects);
  if (copy.serves()) return Progress::kServes;
  Hurry(need, copy, effects);
  return Progress::kComing;
}

// Makes the transfer urgent: it has a waiter now.
void Supply::Hurry(const Need& need, const Copy& copy, Effects& effects) {
  if (need.urgent && copy.filling.has_value())
    transfers_.Hurry(*copy.filling, effects);
}

bool Supply::AwaitsSlab(const Need& need) const {
  const uint64_t offset = copies_.At(need.copy).offset;
  return space_.device(need.copy.place.at.device).IsComing(offset);
}

// The device copy has space; fills it from the host copy.
void Supply::AdvanceDeviceFill(Need& need, Copy& copy, absl::Time now,
                               Effects& effects) {
  const CopyRef host_ref = {need.copy.key, kHost};
  Copy& host = copies_.At(host_ref);
  if (!host.usable() && FillInPlace(need, copy, now, effects)) return;
  if (host.state == Residency::kAbsent &&
      !BringToHost(host_ref, host, need, now, effects)) {
    return needs_.Block(need);
  }
  if (!host.usable()) return Hurry(need, host, effects);
  if (AwaitsSlab(need)) return;  // Its completion wakes the need.
  ++host.readers;
  copies_.Apply(host, ResidencyEvent::kUse);
  host.last_use = now;
  copies_.Fill(copy, transfers_.Start(
                         need.copy.key,
                         HostToDevice{space_.RangesOf(host_ref, host),
                                      need.copy.place.at.device, copy.offset},
                         need.urgent, effects));
}

// In-place memory of devices serves as a source like the pool. False: the group
// is not there.
bool Supply::FillInPlace(const Need& need, Copy& copy, absl::Time now,
                         Effects& effects) {
  for (auto& [place, other] : copies_.FindGroup(need.copy.key)->copies) {
    if (!names_.IsInPlace(place.at) || place == need.copy.place ||
        !other.serves()) {
      continue;
    }
    if (AwaitsSlab(need)) return true;
    ++other.readers;
    copies_.Apply(other, ResidencyEvent::kUse);
    other.last_use = now;
    copies_.Fill(copy,
                 transfers_.Start(
                     need.copy.key,
                     InPlaceToDevice{place.at.device, other.offset, place.apart,
                                     need.copy.place.at.device, copy.offset},
                     need.urgent, effects));
    return true;
  }
  return false;
}

void Supply::FailNeeds(GroupKey key, const absl::Status& why) {
  for (const NeedBook::Age age : needs_.AgesOf(key)) {
    const CopyRef ref = needs_.At(age).copy;
    if (copies_.At(ref).state == Residency::kFilling) continue;
    AbandonSpace(needs_.At(age));
    FailNeed(ref, why);
  }
}

void Supply::FailNeed(const CopyRef& ref, const absl::Status& why) {
  Need* need = needs_.Find(ref);
  if (need == nullptr) return;
  for (Waiter& waiter : need->waiters) {
    work_.refused.push_back({std::move(waiter), ref, why});
  }
  needs_.Erase(needs_.AgeOf(ref));
}

// Gives back reserved device space that is not being filled.
void Supply::AbandonSpace(const Need& need) {
  Copy& copy = copies_.At(need.copy);
  if (copy.state == Residency::kReserved) space_.FillFailed(need.copy, copy);
}

// OK while bytes move for this need: it then waits for them, not for space.
absl::Status Supply::WaitingFor(const Need& need) const {
  const GroupEntry& group = *copies_.FindGroup(need.copy.key);
  const auto at = [&](const Place& place) {
    const auto found = group.copies.find(place);
    return found == group.copies.end() ? Copy() : found->second;
  };
  const Copy copy = at(need.copy.place);
  const Copy host = at(kHost);
  const bool moving = copy.state == Residency::kFilling ||
                      (copy.state == Residency::kReserved &&
                       (host.state == Residency::kFilling || host.usable()));
  return moving ? absl::OkStatus() : need.blocked.why;
}

// Whether a slab is being made for it, or for others that may leave it room.
bool Supply::Making(const Blocked& blocked) const {
  return absl::IsUnavailable(blocked.why) && blocked.at.has_value() &&
         blocked.at->tier == Tier::kDevice &&
         space_.device(blocked.at->device).coming() > 0;
}

void Supply::Expire(absl::Time now, TextFn text) {
  for (const NeedBook::Age age : needs_.Due(now)) {
    if (Expire(needs_.At(age), now, text)) needs_.Erase(age);
  }
}

void Supply::Leave(SessionId session, absl::Time now) {
  std::vector<NeedBook::Age> abandoned;
  for (const NeedBook::Age age : needs_.Ages()) {
    Need& need = needs_.At(age);
    const size_t gone = std::erase_if(
        need.waiters, [&](const Waiter& w) { return w.session == session; });
    if (gone == 0) continue;
    needs_.Changed(need);
    if (need.waiters.empty()) abandoned.push_back(age);
  }
  // At once: space freed now must not be spent on them.
  const auto nobody = [](const Waiter&, const Blocked&) { return ""; };
  for (const NeedBook::Age age : abandoned) {
    if (Expire(needs_.At(age), now, nobody)) needs_.Erase(age);
  }
}

// Refuses waiters past their deadline; true: none is left.
bool Supply::Expire(Need& need, absl::Time now, TextFn text) {
  const absl::Status waiting = WaitingFor(need);
  const bool making = !waiting.ok() && Making(need.blocked);
  // A load is not urgent: bytes on their way may make room after arrival.
  const bool settled = space_.host().bytes() == options_.host_capacity_bytes &&
                       (need.urgent || transfers_.empty());
  const auto refuse = [&](Waiter& waiter, absl::Status why) {
    work_.refused.push_back({std::move(waiter), need.copy, std::move(why)});
  };
  std::vector<Waiter> left;
  for (Waiter& waiter : need.waiters) {
    if (waiter.no_wait && !waiting.ok() && settled &&
        !absl::IsUnavailable(waiting)) {
      refuse(waiter, absl::Status(waiting.code(), text(waiter, need.blocked)));
    } else if (waiter.deadline > now) {
      left.push_back(waiter);
    } else if (waiting.ok()) {
      refuse(waiter, absl::DeadlineExceededError(absl::StrCat(
                         copies_.NameOf(need.copy.key),
                         " is still being copied; give it a longer deadline")));
    } else if (making) {
      refuse(waiter,
             absl::DeadlineExceededError(absl::StrCat(
                 copies_.NameOf(need.copy.key),
                 " waits for device memory that is still being made; give it a "
                 "longer deadline")));
    } else {
      refuse(waiter, absl::ResourceExhaustedError(text(waiter, need.blocked)));
    }
  }
  const bool had_waiters = !need.waiters.empty();
  need.waiters = std::move(left);
  if (had_waiters || need.urgent) need.give_up = now;
  // Without waiters it is a prefetch.
  if (need.waiters.empty()) need.urgent = false;
  needs_.Changed(need);
  if (!need.waiters.empty() || need.give_up > now) return false;
  if (waiting.ok()) {
    // Bytes on their way arrive as a prefetched copy, unless it loses its host
    // place to another and then waits for space.
    need.give_up = now + kArrivalPatience;
    needs_.Changed(need);
    return false;
  }
  AbandonSpace(need);
  space_.Changed();
  return true;
}

void Supply::SlabMade(const CopyRef& copy, const absl::Status& made) {
  if (made.ok()) return needs_.Wake(copy);
  Need* need = needs_.Find(copy);
  if (need == nullptr) return;
  need->blocked = {absl::ResourceExhaustedError(made.message()), copy.place.at,
                   copies_.SpaceOf(copy.key)};
  needs_.Block(*need);
}

}  // namespace hoistd
