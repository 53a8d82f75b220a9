// Eviction: values of copies, and the choice of victims.
#include <algorithm>
#include <utility>

#include "daemon/base/check.h"
#include "daemon/core/space.h"

namespace hoistd {
namespace {

// The host copy of an unreferenced model: evicted before other copies.
constexpr double kUnreferencedWorth = 1e-9;
// A part of the last hoistd without a user since: evicted even before.
constexpr double kIdleWorth = 0;

}  // namespace

absl::StatusOr<uint64_t> Space::PlaceOnHost(OwnerId owner, uint64_t bytes,
                                            const SpaceClaim& claim,
                                            absl::Time now) {
  if (const auto offset = host_.Allocate(bytes, owner)) return *offset;
  const auto victims = HostHole(bytes, claim, now);
  if (!victims.has_value()) return absl::ResourceExhaustedError("");
  if (!EvictAll(*victims, Leaving::ForRoom(claim.copy.key.model, now))) {
    return absl::UnavailableError("waiting for spills");
  }
  const auto offset = host_.Allocate(bytes, owner);
  HOIST_CHECK(offset.has_value());
  return *offset;
}

// Eviction victims, which `choose` picks by value. Order: copies of unused
// models first; among these, published ones that cannot be spilled only if the
// rest is not enough, since they are then lost.
Space::Victims Space::HostVictims(const SpaceClaim& claim, absl::Time now,
                                  ChooseVictimsFn choose) const {
  const auto worth = [&](OwnerId other) { return ValueOf(other, claim, now); };
  if (!claim.urgent || !CannotSpill(now)) return choose(worth);
  const std::vector<ModelId> expendable = Expendable();
  if (expendable.empty()) return choose(worth);
  if (auto victims = UnreferencedVictims(expendable, claim, now, choose)) {
    return victims;
  }
  if (auto victims = choose(worth)) return victims;
  const std::set<ModelId> any(expendable.begin(), expendable.end());
  return choose([&](OwnerId other) -> std::optional<double> {
    const CopyRef* ref = copies_.RefOf(other);
    if (ref == nullptr || !any.contains(ref->key.model)) return worth(other);
    return KeepValue(FactsOf(*ref, now));
  });
}

// Only copies of unused models; of the models, least recently used first, only
// the first few that are enough.
Space::Victims Space::UnreferencedVictims(
    const std::vector<ModelId>& expendable, const SpaceClaim& claim,
    absl::Time now, ChooseVictimsFn choose) const {
  const auto used = [&](GroupKey key) { return demand_.Uses(key.model); };
  const auto of_first = [&](size_t count) {
    const std::set<ModelId> first(expendable.begin(),
                                  expendable.begin() + count);
    return choose([&](OwnerId other) -> std::optional<double> {
      if (const CopyRef* ref = copies_.RefOf(other)) {
        if (used(ref->key)) return std::nullopt;
        if (first.contains(ref->key.model)) {
          return KeepValue(FactsOf(*ref, now));
        }
      } else if (const auto* users = parts_.UsersOf(other);
                 users != nullptr &&
                 std::any_of(users->begin(), users->end(), used)) {
        return std::nullopt;
      }
      return ValueOf(other, claim, now);
    });
  };
  std::optional<std::vector<OwnerId>> best = of_first(expendable.size());
  if (!best.has_value()) return best;
  size_t too_few = 0, enough = expendable.size();
  if (auto none = of_first(0)) return none;
  while (enough - too_few > 1) {
    const size_t count = (too_few + enough) / 2;
    if (auto victims = of_first(count)) {
      best = std::move(victims);
      enough = count;
    } else {
      too_few = count;
    }
  }
  return best;
}

// For `bytes` in one range.
Space::Victims Space::HostHole(uint64_t bytes, const SpaceClaim& claim,
                               absl::Time now) const {
  return HostVictims(claim, now, [&](KeepValueFn worth) -> Victims {
    std::optional<Hole> hole = host_.CheapestHole(bytes, 0, worth);
    if (!hole.has_value()) return std::nullopt;
    return std::move(hole->victims);
  });
}

std::vector<ModelId> Space::Expendable() const {
  std::map<ModelId, absl::Time> last_use;
  for (const auto& [id, entry] : copies_.models()) {
    if (!Unreferenced(*entry->model)) continue;
    bool idle = true;
    absl::Time last = absl::InfinitePast();
    for (const GroupEntry& group : entry->groups) {
      for (const auto& [place, copy] : group.copies) {
        idle = idle && copy.leases == 0 && copy.readers == 0 && !copy.pinned &&
               copy.state != Residency::kReserved &&
               copy.state != Residency::kFilling;
        if (copy.usable()) last = std::max(last, copy.last_use);
      }
    }
    if (idle) last_use[id] = last;
  }
  for (const ModelId model : demand_.Wanted()) last_use.erase(model);
  std::vector<ModelId> models;
  for (const auto& [model, last] : last_use) models.push_back(model);
  std::stable_sort(models.begin(), models.end(), [&](ModelId a, ModelId b) {
    return last_use.at(a) < last_use.at(b);
  });
  return models;
}

bool Space::Unreferenced(const Model& model) const {
  return model.spec->published && !demand_.Uses(model.id);
}

// The copies in these extents, each once.
std::vector<CopyRef> Space::CopiesOf(const Owners& owners) const {
  std::vector<CopyRef> copies;
  std::set<GroupKey> users;
  for (const OwnerId owner : owners) {
    if (const CopyRef* ref = copies_.RefOf(owner)) copies.push_back(*ref);
    if (const auto* of_part = parts_.UsersOf(owner)) {
      users.insert(of_part->begin(), of_part->end());
    }
  }
  for (const GroupKey key : users) copies.push_back({key, kHost});
  return copies;
}

bool Space::EvictAll(const Owners& victims, const Leaving& how) {
  const size_t spills = work_.spills.size();
  for (const CopyRef& ref : CopiesOf(victims)) {
    if (copies_.At(ref).spilling() ||
        (Clean(ref) ? copies_.PageOut(ref, how.at) : MaySpill(how.at))) {
      work_.spills.push_back({ref.key, how});
    }
  }
  if (work_.spills.size() > spills) return false;
  std::vector<uint64_t> freed;
  for (const OwnerId owner : victims) {
    if (parts_.Idle(owner)) parts_.Forgo(owner, freed);
  }
  FreeExtents(freed);
  for (const CopyRef& ref : CopiesOf(victims)) {
    Copy& copy = copies_.At(ref);
    if (!copy.usable()) continue;  // It left with its model.
    if (!Clean(ref)) {
      // Without this group the model's others are useless.
      Forget(ref.key.model);
      continue;
    }
    Drop(ref, copy, ResidencyEvent::kDrop, how);
    work_.dropped.push_back(ref);
  }
  return true;
}

bool Space::CannotSpill(absl::Time now) const {
  return !CanSpill() || (!MaySpill(now) && disk_.full());
}

bool Space::MaySpill(absl::Time now) const {
  return CanSpill() && disk_.MayTry(now);
}

// Whether dropping the copy loses nothing.
bool Space::Clean(const CopyRef& ref) const {
  const GroupEntry& group = *copies_.FindGroup(ref.key);
  if (group.on_disk()) return true;
  // A device copy came from the host copy, which stays until it is spilled.
  // That fails only if the spilled image proved damaged.
  const auto host = group.copies.find(kHost);
  return ref.place.at.tier == Tier::kDevice && host != group.copies.end() &&
         host->second.usable();
}

std::optional<double> Space::ValueOf(OwnerId owner, const SpaceClaim& claim,
                                     absl::Time now) const {
  if (const CopyRef* ref = copies_.RefOf(owner)) {
    return ValueOf(*ref, copies_.SpaceOf(ref->key), claim, now);
  }
  const std::vector<GroupKey>* users = parts_.UsersOf(owner);
  // Unused, but perhaps used again.
  if (parts_.Idle(owner)) return kIdleWorth;
  // An image being received, or a part without users.
  if (users == nullptr || users->empty()) return std::nullopt;
  // The value to the user with the most to lose.
  double most = 0;
  for (const GroupKey user : *users) {
    const std::optional<double> value =
        ValueOf({user, kHost}, parts_.SpaceOf(owner), claim, now);
    if (!value.has_value()) return std::nullopt;
    most = std::max(most, *value);
  }
  return most;
}

// The value of `bytes` of the copy.
std::optional<double> Space::ValueOf(const CopyRef& ref, uint64_t bytes,
                                     const SpaceClaim& claim,
                                     absl::Time now) const {
  const GroupEntry& group = *copies_.FindGroup(ref.key);
  const auto found = group.copies.find(ref.place);
  if (found == group.copies.end()) return std::nullopt;
  const Copy& copy = found->second;
  if (!copy.usable() || copy.leases > 0 || copy.pinned ||
      copy.readers > (copy.spilling() ? 1u : 0u)) {
    return std::nullopt;
  }
  // It has just arrived for waiters about to be told; or its waiters also wait
  // for something else, and a prefetch must not evict them.
  if (demand_.Awaits(ref, claim.urgent)) return std::nullopt;
  // On the tier that the model is brought to; copies only pass through below.
  if (claim.spare == ref.key.model &&
      ref.place.at.tier == claim.copy.place.at.tier) {
    return std::nullopt;
  }
  const bool clean = Clean(ref);
  if (!clean && !copy.spilling() && (ref.place != kHost || !MaySpill(now))) {
    return std::nullopt;
  }

  KeepFacts facts = FactsOf(ref, now);
  facts.bytes = bytes;
  if (!claim.urgent) {
    // A prefetch must not evict copies needed sooner, nor another prefetch.
    if (copy.state == Residency::kArrived) return std::nullopt;
    const auto mine = demand_.UntilUse(claim.copy.key);
    if (facts.until_use.has_value() &&
        (!mine.has_value() || *facts.until_use <= *mine)) {
      return std::nullopt;
    }
  }
  // And no order predicts its use.
  const bool first = ref.place == kHost && !facts.until_use.has_value() &&
                     Unreferenced(*copies_.FindModel(ref.key.model)->model);
  return KeepValue(facts) * (first ? kUnreferencedWorth : 1);
}

KeepFacts Space::FactsOf(const CopyRef& ref, absl::Time now) const {
  const GroupEntry& group = *copies_.FindGroup(ref.key);
  KeepFacts facts;
  facts.bytes = hoistd::SpaceOf(*group.group);
  facts.since_use = now - group.copies.at(ref.place).last_use;
  facts.until_use = demand_.UntilUse(ref.key);
  facts.restore_bytes_per_second = options_.disk_bytes_per_second;
  if (ref.place.at.tier == Tier::kDevice) {
    const auto host = group.copies.find(kHost);
    if (host != group.copies.end() && host->second.usable()) {
      facts.restore_bytes_per_second = options_.host_bytes_per_second;
    }
  }
  if (!Clean(ref)) {
    facts.spill_bytes_per_second = options_.disk_bytes_per_second;
  }
  return facts;
}

}  // namespace hoistd
