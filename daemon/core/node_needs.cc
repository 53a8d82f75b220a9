// Needs: who waits for which copy, and what is done about it next.
#include <algorithm>
#include <set>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "daemon/base/check.h"
#include "daemon/core/node.h"

namespace hoistd {
namespace {

// How often it is looked after whether what nobody waits for still moves.
constexpr absl::Duration kArrivalPatience = absl::Seconds(60);

}  // namespace

Need& Node::NeedFor(const CopyRef& copy, bool urgent, Effects& effects) {
  Need* found = needs_.Find(copy);
  Need& need = found != nullptr ? *found : needs_.Add(copy, ++last_id_);
  if (urgent && !need.urgent) {
    // What was a prefetch, of this copy or of the host's, now holds somebody
    // up.
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
    if (parts_.Has(copy.key)) {
      for (const TransferId id : parts_.FillersOf(copy.key)) fillers.insert(id);
    }
    for (const TransferId id : fillers) Hurry(id, effects);
    needs_.Changed(need);
    needs_.Wake(copy);
  }
  return need;
}

void Node::AddWaiter(Need& need, const Waiter& waiter) {
  need.waiters.push_back(waiter);
  need.tried_at = 0;
  needs_.Changed(need);
  needs_.Wake(need.copy);
}

// Until nothing changes: space that one need gave back may do for an older one.
// Ends, since a round that changes the epoch has met a need or evicted a usable
// copy, and no need comes and no copy becomes usable in here.
void Node::Pump(absl::Time now, Effects& effects) {
  do {
    if (pumped_epoch_ != space_epoch_) needs_.WakeBlocked();
    pumped_epoch_ = space_epoch_;
    PumpNeeds(/*urgent=*/true, now, effects);
    for (const RequestId request : incoming_.Waiting()) {
      AdvanceIncoming(request, now, effects);
    }
    AdvancePlans(now, effects);
    PumpNeeds(/*urgent=*/false, now, effects);
  } while (space_epoch_ != pumped_epoch_ || needs_.AnyReady());
}

void Node::PumpNeeds(bool urgent, absl::Time now, Effects& effects) {
  for (const uint64_t age : needs_.Ready(urgent)) {
    if (!needs_.IsReady(age)) continue;  // Another's step ended it.
    if (Advance(needs_.At(age), now, effects)) needs_.Erase(age);
  }
}

// Takes the next step, after which something else must wake the need; true: it
// is met and answered.
bool Node::Advance(Need& need, absl::Time now, Effects& effects) {
  Copy& copy = copies_.At(need.copy);
  needs_.Rest(need);
  if (copy.state == Residency::kAbsent) {
    if (const Need* older = needs_.CrowdedBy(need)) {
      need.blocked = older->blocked;
      needs_.Block(need);
      return false;
    }
    const auto may_open = [&](const Waiter& waiter) {
      const absl::Status may = MayOpen(waiter, need.copy, copy, now, effects);
      if (!may.ok()) need.blocked.why = may;  // Else it stays what it was.
      return may.ok();
    };
    if (need.gated &&
        std::none_of(need.waiters.begin(), need.waiters.end(), may_open)) {
      needs_.Block(need);  // It lost its place; brought now, it would again.
      return false;
    }
    const bool host = need.copy.place.at.tier == Tier::kHost;
    if (host ? !BringToHost(need.copy, copy, need, now, effects)
             : !Reserve(need.copy, copy, need, now, effects)) {
      if (host && need.urgent && absl::IsResourceExhausted(need.blocked.why)) {
        AskPlansForRoom(need, effects);
      }
      needs_.Block(need);
      return false;
    }
    copy.awaiting_host = !host;
    need.gated = false;  // As long as it is on its way nobody takes its place.
  }
  if (copy.state == Residency::kFilling && copy.awaiting_host) {
    AdvanceDeviceFill(need, copy, now, effects);
  }
  if (!copy.serves()) {
    Hurry(need, copy, effects);
    return false;
  }
  const bool keeps = std::ranges::any_of(
      need.waiters, [](const Waiter& w) { return w.lease || w.pin; });
  if (keeps) {
    need.blocked = {CheckBesidePlans(need.copy), need.copy.place.at,
                    SpaceOf(*copies_.FindGroup(need.copy.key)->group)};
    need.gated = !need.blocked.why.ok();
    if (need.gated) {
      needs_.Block(need);
      return false;
    }
  }
  copy.fresh = need.waiters.empty();
  std::vector<Waiter> left;
  const size_t all = need.waiters.size();
  for (Waiter& waiter : need.waiters) {
    absl::Status may = MayOpen(waiter, need.copy, copy, now, effects);
    if (may.ok()) {
      Satisfy(waiter, need.copy, copy, now, effects);
      continue;
    }
    need.blocked.why = std::move(may);
    left.push_back(std::move(waiter));
  }
  need.waiters = std::move(left);
  need.gated = !need.waiters.empty();
  if (need.gated) {
    needs_.Changed(need);
    needs_.Block(need);
    if (need.waiters.size() == all) return false;
  }
  ++space_epoch_;  // From now on others may have its place.
  return !need.gated;
}

// Somebody waits for what nobody waited for when it was started.
void Node::Hurry(const Need& need, const Copy& copy, Effects& effects) {
  if (need.urgent && copy.filling.has_value()) Hurry(*copy.filling, effects);
}

void Node::Hurry(TransferId id, Effects& effects) {
  const auto found = transfers_.find(id);
  if (found == transfers_.end()) return;  // The pool is to come up there.
  if (std::exchange(found->second.urgent, true)) return;
  effects.urgent.push_back(id);
}

// The device copy has its space; it is filled from the host copy.
void Node::AdvanceDeviceFill(Need& need, Copy& copy, absl::Time now,
                             Effects& effects) {
  const CopyRef host_ref = {need.copy.key, kHost};
  Copy& host = copies_.At(host_ref);
  if (!host.usable() && FillInPlace(need, copy, now, effects)) return;
  if (host.state == Residency::kAbsent) {
    if (!BringToHost(host_ref, host, need, now, effects)) {
      return needs_.Block(need);
    }
  }
  if (!host.usable()) return Hurry(need, host, effects);
  if (copy.awaiting_slab) return;  // Its being made wakes the need.
  ++host.readers;
  host.fresh = false;
  host.last_use = now;
  copy.awaiting_host = false;
  copy.filling = Start(need.copy.key,
                       HostToDevice{RangesOf(host_ref, host),
                                    need.copy.place.at.device, copy.offset},
                       need.urgent, effects);
}

// What devices read in place serves as well as what the pool has. False: it is
// not there.
bool Node::FillInPlace(const Need& need, Copy& copy, absl::Time now,
                       Effects& effects) {
  for (auto& [place, other] : copies_.FindGroup(need.copy.key)->copies) {
    if (!names_.IsInPlace(place.at) || place == need.copy.place ||
        !other.serves()) {
      continue;
    }
    if (copy.awaiting_slab) return true;
    ++other.readers;
    other.last_use = now;
    copy.awaiting_host = false;
    copy.filling =
        Start(need.copy.key,
              InPlaceToDevice{place.at.device, other.offset, place.apart,
                              need.copy.place.at.device, copy.offset},
              need.urgent, effects);
    return true;
  }
  return false;
}

void Node::StartHostFill(const CopyRef& ref, Copy& copy, bool urgent,
                         Effects& effects) {
  const GroupEntry& group = *copies_.FindGroup(ref.key);
  HOIST_CHECK(group.on_disk());
  TransferWay way = FilesToHost();  // Of a group without bytes.
  if (group.spilled.has_value()) way = SpillToHost{*group.spilled, copy.offset};
  copy.filling = Start(ref.key, std::move(way), urgent, effects);
}

// The group could not be brought to the host: nothing that waits for it can go
// on.
void Node::FailNeeds(GroupKey key, const absl::Status& status,
                     Effects& effects) {
  for (const uint64_t age : needs_.AgesOf(key)) {
    if (!needs_.Has(age)) continue;  // Another's end was its end, too.
    const Copy& copy = copies_.At(needs_.At(age).copy);
    if (copy.state == Residency::kFilling && !copy.awaiting_host) continue;
    const Need need = needs_.At(age);
    needs_.Erase(age);
    AbandonSpace(need);
    for (const Waiter& waiter : need.waiters) {
      Refuse(waiter, need.copy, status, effects);
    }
  }
}

// Nobody gets this copy, though others of the group may be had.
void Node::FailNeed(const CopyRef& ref, const absl::Status& why,
                    Effects& effects) {
  if (needs_.Find(ref) == nullptr) return;
  const Need need = *needs_.Find(ref);
  needs_.Erase(needs_.AgeOf(ref));
  for (const Waiter& waiter : need.waiters) Refuse(waiter, ref, why, effects);
}

// Gives back device space that was reserved and is not being filled.
void Node::AbandonSpace(const Need& need) {
  Copy& copy = copies_.At(need.copy);
  if (copy.state != Residency::kFilling || !copy.awaiting_host) return;
  FreeSpace(need.copy, copy);
  copies_.Apply(copy, ResidencyEvent::kFillFailed);
}

// OK while bytes move for this need: then it waits for them, not for space.
absl::Status Node::WaitingFor(const Need& need) const {
  const GroupEntry& group = *copies_.FindGroup(need.copy.key);
  const auto state = [&](const Place& place) {
    const auto found = group.copies.find(place);
    return found == group.copies.end() ? nullptr : &found->second;
  };
  const Copy* copy = state(need.copy.place);
  const Copy* host = state(kHost);
  const bool moving =
      (copy != nullptr && copy->filling.has_value()) ||
      (copy != nullptr && copy->awaiting_host && host != nullptr &&
       (host->filling.has_value() || host->usable()));
  if (moving) return absl::OkStatus();
  return need.blocked.why;
}

// Whether a slab for it, or for others who may leave it some, is being made.
bool Node::Making(const Blocked& blocked) const {
  return absl::IsUnavailable(blocked.why) && blocked.at.has_value() &&
         blocked.at->tier == Tier::kDevice &&
         spaces_[blocked.at->device.number()]->coming() > 0;
}

// Refuses those whose deadline is over; true: nobody waits any more.
bool Node::Expire(Need& need, absl::Time now, Effects& effects) {
  const absl::Status waiting = WaitingFor(need);
  const bool making = !waiting.ok() && Making(need.blocked);
  // A load is in no hurry: what moves now may make room when it has arrived.
  const bool settled = host_.bytes() == options_.host_capacity_bytes &&
                       (need.urgent || transfers_.empty());
  const auto text = [&](const Waiter& waiter) {
    return TextFor(PeerOf(waiter.session), need.blocked);
  };
  std::vector<Waiter> left;
  for (Waiter& waiter : need.waiters) {
    if (waiter.no_wait && !waiting.ok() && settled &&
        !absl::IsUnavailable(waiting)) {
      Refuse(waiter, need.copy, absl::Status(waiting.code(), text(waiter)),
             effects);
    } else if (waiter.deadline > now) {
      left.push_back(waiter);
    } else if (waiting.ok()) {
      Refuse(waiter, need.copy,
             absl::DeadlineExceededError(absl::StrCat(
                 NameOf(need.copy.key),
                 " is still being copied; give it a longer deadline")),
             effects);
    } else if (making) {
      Refuse(waiter, need.copy,
             absl::DeadlineExceededError(absl::StrCat(
                 NameOf(need.copy.key),
                 " waits for device memory that is still being made; give it a "
                 "longer deadline")),
             effects);
    } else {
      Refuse(waiter, need.copy, absl::ResourceExhaustedError(text(waiter)),
             effects);
    }
  }
  const bool had_waiters = !need.waiters.empty();
  need.waiters = std::move(left);
  if (had_waiters || need.urgent) need.give_up = now;
  // What nobody waits for is a prefetch.
  if (need.waiters.empty()) need.urgent = false;
  needs_.Changed(need);
  if (!need.waiters.empty() || need.give_up > now) return false;
  if (waiting.ok()) {
    // What is on its way arrives, and is kept as a prefetched copy; unless it
    // loses its place on the host to another and then waits for space.
    need.give_up = now + kArrivalPatience;
    needs_.Changed(need);
    return false;
  }
  AbandonSpace(need);
  ++space_epoch_;
  return true;
}

}  // namespace hoistd
