// Space: who gets it, and what leaves for it.
#include <algorithm>
#include <utility>

#include "absl/strings/str_cat.h"
#include "daemon/base/check.h"
#include "daemon/base/status.h"
#include "daemon/core/node.h"

namespace hoistd {
namespace {

// Of a deserted model's host copy beside any other: it goes first.
constexpr double kDesertedWorth = 1e-9;
// Of what the last hoistd had read and nobody has asked for since: before that.
constexpr double kIdleWorth = 0;

}  // namespace

// Gives the absent copy space; false: there is none now, need.blocked says why.
bool Node::Reserve(const CopyRef& ref, Copy& copy, Need& need, absl::Time now,
                   Effects& effects) {
  if (need.tried_at == space_epoch_) return false;  // Nothing has changed.
  // Before this: what it changes may help.
  const uint64_t epoch = space_epoch_;
  const uint64_t bytes = SpaceOf(*copies_.FindGroup(ref.key)->group);
  if (absl::Status s = CheckBesidePlans(ref); !s.ok()) {
    need.blocked = {std::move(s), ref.place.at, bytes};
    need.tried_at = epoch;
    return false;
  }
  const OwnerId owner = copies_.NewOwner(ref);
  const bool on_device = ref.place.at.tier == Tier::kDevice;
  absl::StatusOr<uint64_t> offset =
      on_device ? AllocateDevice(ref, owner, bytes, need, now, effects)
                : AllocateHost(owner, bytes, need, now, effects);
  if (on_device && offset.ok()) {
    // Where it lies decides which slabs could be given back to plans: it would
    // be brought for nothing, again and again.
    if (absl::Status s = CheckBesidePlans(ref); !s.ok()) {
      spaces_[ref.place.at.device.number()]->Free(*offset);
      offset = std::move(s);
    }
  }
  if (!offset.ok()) {
    copies_.DropOwner(owner);
    need.blocked = {offset.status(), ref.place.at, bytes};
    need.tried_at = epoch;
    return false;
  }
  copies_.Apply(copy, ResidencyEvent::kReserve);
  copy.owner = owner;
  copy.offset = *offset;
  copy.awaiting_slab =
      on_device && spaces_[ref.place.at.device.number()]->IsComing(copy.offset);
  copy.last_use = now;
  copy.leaving = false;
  Weigh(ref, copy);
  return true;
}

absl::StatusOr<uint64_t> Node::AllocateHost(OwnerId owner, uint64_t bytes,
                                            const Need& need, absl::Time now,
                                            Effects& effects) {
  if (const auto offset = host_.Allocate(bytes, owner)) return *offset;
  const auto victims = HostHole(bytes, need, now);
  if (!victims.has_value()) return absl::ResourceExhaustedError("");
  if (!EvictAll(*victims, now, effects)) {
    return absl::UnavailableError("waiting for spills to disk");
  }
  const auto offset = host_.Allocate(bytes, owner);
  HOIST_CHECK(offset.has_value());
  return *offset;
}

// Who is to leave, as `choose` picks them by what each is worth. What no
// session uses goes first; of that, what was published and can be spilled
// nowhere only where the rest does not do, since it is gone then.
std::optional<std::vector<OwnerId>> Node::HostVictims(
    const Need& need, absl::Time now, ChooseVictimsFn choose) const {
  const auto worth = [&](OwnerId other) { return ValueOf(other, need, now); };
  if (!need.urgent || !CannotSpill(now)) return choose(worth);
  const std::vector<ModelId> expendable = Expendable();
  if (expendable.empty()) return choose(worth);
  if (auto victims = DesertedVictims(expendable, need, now, choose)) {
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

// Of what no session uses alone, and of the models, of which the first was used
// least recently, no more than the first few that do.
std::optional<std::vector<OwnerId>> Node::DesertedVictims(
    const std::vector<ModelId>& expendable, const Need& need, absl::Time now,
    ChooseVictimsFn choose) const {
  const auto used = [&](GroupKey key) { return sessions_.Used(key.model); };
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
      return ValueOf(other, need, now);
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

// For so many bytes in one place.
std::optional<std::vector<OwnerId>> Node::HostHole(uint64_t bytes,
                                                   const Need& need,
                                                   absl::Time now) const {
  return HostVictims(need, now, [&](KeepValueFn worth) -> Victims {
    std::optional<Hole> hole = host_.CheapestHole(bytes, 0, worth);
    if (!hole.has_value()) return std::nullopt;
    return std::move(hole->victims);
  });
}

// Published models that nobody would miss now: no session uses them, and
// nothing of them is leased, held, pinned, planned, awaited or being copied.
// The least recently used first.
std::vector<ModelId> Node::Expendable() const {
  std::map<ModelId, absl::Time> last_use;
  for (const auto& [id, entry] : copies_.models()) {
    if (!Deserted(*entry->model)) continue;
    bool idle = true;
    absl::Time last = absl::InfinitePast();
    for (const GroupEntry& group : entry->groups) {
      for (const auto& [place, copy] : group.copies) {
        idle = idle && copy.leases == 0 && copy.readers == 0 && !copy.pinned &&
               copy.state != Residency::kFilling;
        if (copy.usable()) last = std::max(last, copy.last_use);
      }
    }
    if (idle) last_use[id] = last;
  }
  for (const ModelId model : needs_.Models()) last_use.erase(model);
  for (const auto& [key, check] : checking_) last_use.erase(key.model);
  for (const ModelId model : plans_.Models()) last_use.erase(model);
  std::vector<ModelId> models;
  for (const auto& [model, last] : last_use) models.push_back(model);
  std::stable_sort(models.begin(), models.end(), [&](ModelId a, ModelId b) {
    return last_use.at(a) < last_use.at(b);
  });
  return models;
}

bool Node::Deserted(const Model& model) const {
  return model.spec->published && !sessions_.Used(model.id);
}

absl::StatusOr<uint64_t> Node::AllocateDevice(const CopyRef& ref, OwnerId owner,
                                              uint64_t bytes, const Need& need,
                                              absl::Time now,
                                              Effects& effects) {
  absl::StatusOr<uint64_t> offset =
      PlaceOnDevice(ref, owner, bytes, need, now, effects);
  TakeSlabWork(effects);
  return offset;
}

void Node::TakeSlabWork(Effects& effects) {
  for (const std::unique_ptr<DeviceSpace>& space : spaces_) {
    for (const SlabWork& work : space->TakeWork()) {
      if (work.kind == SlabWork::Kind::kDestroy) {
        Keep(KeptSlab{work.device, work.slab, std::nullopt, -1});
      }
      effects.slabs.push_back(work);
    }
  }
}

absl::StatusOr<uint64_t> Node::PlaceOnDevice(const CopyRef& ref, OwnerId owner,
                                             uint64_t bytes, const Need& need,
                                             absl::Time now, Effects& effects) {
  const DeviceIndex device = ref.place.at.device;
  DeviceSpace& space = *spaces_[device.number()];
  Want want = {ZoneOf(ref), bytes};
  if (const PromiseBook& book = plans_.promises(device); book.any()) {
    want.promised = book.ByZone();
  }
  const auto opened = [&](SlabId slab) {
    return slabs_.OpenedBy(device, slab);
  };
  const auto worth = [&](OwnerId other) { return ValueOf(other, need, now); };
  absl::StatusOr<uint64_t> offset = space.Allocate(want, owner);
  if (!absl::IsResourceExhausted(offset.status())) return offset;
  if (want.zone.apart && !space.MayAddApart(want.zone.backing).ok()) {
    HOIST_RETURN_IF_ERROR(
        FreeDescriptors(want.zone.backing, need, now, effects));
    offset = space.Allocate(want, owner);
    if (!absl::IsResourceExhausted(offset.status())) return offset;
  }
  // What is kept for arenas to come goes before anybody's copy.
  space.ReleaseWritable(want);
  offset = space.Allocate(want, owner);
  if (!absl::IsResourceExhausted(offset.status())) return offset;
  if (const auto hole = space.CheapestHole(want, worth)) {
    EvictAll(hole->victims, now, effects);  // Device copies are always clean.
    return space.Allocate(want, owner);
  }
  const Room room =
      space.RoomElsewhere(want, /*own=*/true, /*idle=*/false, worth, opened);
  if (room.enough) {
    EvictAll(room.victims, now, effects);
    space.ReleaseSlabs(want, opened);
    return space.Allocate(want, owner);
  }
  // For whomever it was made, it may go to who asks now, or be given back.
  if (space.coming() > 0) {
    return absl::UnavailableError("device memory is being made");
  }
  // Only for who waits are workers disturbed.
  if (need.urgent || !need.waiters.empty()) {
    HOIST_RETURN_IF_ERROR(AskForRoom(device, want, worth, now, effects));
  }
  return absl::ResourceExhaustedError(offset.status().message());
}

// The copies that lie in these extents, each once.
std::vector<CopyRef> Node::CopiesOf(const std::vector<OwnerId>& owners) const {
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

// Makes the victims leave. False: some must be spilled first; that has begun.
bool Node::EvictAll(const std::vector<OwnerId>& victims, absl::Time now,
                    Effects& effects) {
  bool all_clean = true;
  for (const CopyRef& ref : CopiesOf(victims)) {
    Copy& copy = copies_.At(ref);
    if (copy.state == Residency::kSpilling) {
      HurrySpill(ref.key, effects);
      all_clean = false;
    } else if (!Clean(ref) && MaySpill(now)) {
      StartSpill(ref, copy, /*urgent=*/true, effects);
      all_clean = false;
    }
  }
  if (!all_clean) return false;
  std::vector<FreedExtent> freed;
  for (const OwnerId owner : victims) {
    if (parts_.Idle(owner)) parts_.Forgo(owner, freed);
  }
  FreeExtents(freed);
  for (const CopyRef& ref : CopiesOf(victims)) {
    const Copy* copy = copies_.Find(ref);
    // It went with its model.
    if (copy == nullptr || !copy->usable()) continue;
    if (!Clean(ref)) {
      // Without this group the model's others are of no use either.
      ++counters_.models_forgotten;
      RemoveModel(ref.key.model,
                  "it made room: no session used it, and it could not be "
                  "spilled",
                  now, effects);
      continue;
    }
    Note(effects, EventKind::kCopyDropped, ref, "evicted");
    ++(ref.place.at.tier == Tier::kDevice ? counters_.device_evictions
                                          : counters_.host_evictions);
    Drop(ref, copies_.At(ref), ResidencyEvent::kDrop,
         Leaving{Leaving::Why::kEvicted, now});
  }
  return true;
}

// A disk that fails may work again; one that is full stays so.
bool Node::CannotSpill(absl::Time now) const {
  return !CanSpill() ||
         (!MaySpill(now) && absl::IsResourceExhausted(spill_failed_));
}

bool Node::MaySpill(absl::Time now) const {
  return CanSpill() && (spill_failed_.ok() || now >= spill_retry_at_);
}

void Node::Drop(const CopyRef& ref, Copy& copy, ResidencyEvent event,
                std::optional<Leaving> how) {
  HOIST_CHECK(copy.leases == 0 && copy.readers == 0);
  copies_.Apply(copy, event);
  FreeSpace(ref, copy);
  copy = Copy{.state = copy.state, .left = how};
}

void Node::FreeSpace(const CopyRef& ref, Copy& copy) {
  if (ref.place.at.tier == Tier::kDevice) {
    spaces_[ref.place.at.device.number()]->Free(copy.offset);
    KeepCopy(ref, copy, /*there=*/false);
    plans_.SetIdle(ref);
  } else {
    if (parts_.Has(ref.key)) {
      LeaveParts(ref.key);
    } else {
      host_.Free(copy.offset);
      Keep(KeptOnHost{copy.offset, {}});
    }
  }
  copies_.DropOwner(copy.owner);
  copy.awaiting_host = false;
  copy.awaiting_slab = false;
  copy.filling.reset();
  ++space_epoch_;
}

// Whether the copy may be dropped without losing anything.
bool Node::Clean(const CopyRef& ref) const {
  const GroupEntry& group = *copies_.FindGroup(ref.key);
  if (group.on_disk()) return true;
  // A device copy was made from the host copy, which stays until it is spilled,
  // unless what was spilled turned out to be bad.
  const auto host = group.copies.find(kHost);
  return ref.place.at.tier == Tier::kDevice && host != group.copies.end() &&
         host->second.usable();
}

std::optional<double> Node::ValueOf(OwnerId owner, const Need& need,
                                    absl::Time now) const {
  if (const CopyRef* ref = copies_.RefOf(owner)) {
    return ValueOf(*ref, SpaceOf(*copies_.FindGroup(ref->key)->group), need,
                   now);
  }
  const std::vector<GroupKey>* users = parts_.UsersOf(owner);
  // Nobody's, but it may be somebody's once more.
  if (parts_.Idle(owner)) return kIdleWorth;
  // An image being received, or what nobody waits for any more.
  if (users == nullptr || users->empty()) return std::nullopt;
  // As much as to the one who would miss it most.
  double most = 0;
  for (const GroupKey user : *users) {
    const std::optional<double> value =
        ValueOf({user, kHost}, parts_.SpaceOf(owner), need, now);
    if (!value.has_value()) return std::nullopt;
    most = std::max(most, *value);
  }
  return most;
}

// What `bytes` of the copy are worth.
std::optional<double> Node::ValueOf(const CopyRef& ref, uint64_t bytes,
                                    const Need& need, absl::Time now) const {
  const GroupEntry& group = *copies_.FindGroup(ref.key);
  const auto found = group.copies.find(ref.place);
  if (found == group.copies.end()) return std::nullopt;
  const Copy& copy = found->second;
  const bool spilling = copy.state == Residency::kSpilling;
  if (!copy.usable() || copy.leases > 0 || copy.pinned ||
      copy.readers > (spilling ? 1u : 0u)) {
    return std::nullopt;
  }
  // It has just arrived, and who waits for it is about to be told; or they wait
  // for something else as well, and are nobody whom a prefetch may push out.
  if (const Need* waits = needs_.Find(ref);
      waits != nullptr && (!waits->gated || !need.urgent)) {
    return std::nullopt;
  }
  // Where the model is to be brought up; below, its copies only pass through.
  if (need.spare == ref.key.model &&
      ref.place.at.tier == need.copy.place.at.tier) {
    return std::nullopt;
  }
  const bool clean = Clean(ref);
  if (!clean && !spilling && (ref.place != kHost || !MaySpill(now))) {
    return std::nullopt;
  }

  KeepFacts facts = FactsOf(ref, now);
  facts.bytes = bytes;
  if (!need.urgent) {
    // A prefetch must not push out what is needed sooner, nor another one.
    if (copy.fresh) return std::nullopt;
    const auto mine = orders_.UntilUse(need.copy.key);
    if (facts.until_use.has_value() &&
        (!mine.has_value() || *facts.until_use <= *mine)) {
      return std::nullopt;
    }
  }
  // Nor has anybody else said that it will be needed.
  const bool first = ref.place == kHost && !facts.until_use.has_value() &&
                     Deserted(*copies_.FindModel(ref.key.model)->model);
  return KeepValue(facts) * (first ? kDesertedWorth : 1);
}

KeepFacts Node::FactsOf(const CopyRef& ref, absl::Time now) const {
  const GroupEntry& group = *copies_.FindGroup(ref.key);
  KeepFacts facts;
  facts.bytes = SpaceOf(*group.group);
  facts.since_use = now - group.copies.at(ref.place).last_use;
  facts.until_use = orders_.UntilUse(ref.key);
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

uint64_t Node::CapacityOf(TierAt at) const {
  if (at.tier == Tier::kDevice) {
    return spaces_[at.device.number()]->capacity();
  }
  return at.tier == Tier::kHost ? options_.host_capacity_bytes
                                : options_.spill_capacity_bytes;
}

CopyRef Node::RingRef(const PlanGrant& grant) {
  return {{grant.model, grant.groups.front().group},
          {OnDevice(grant.device), false}};
}

Zone Node::ZoneOf(const CopyRef& ref) const {
  Zone zone;
  zone.readers = models_.ReadersOf(*copies_.FindModel(ref.key.model)->model);
  zone.backing = ref.place.shared
                     ? Backing::kIpc
                     : devices_[ref.place.at.device.number()].backing;
  zone.apart = ref.place.apart;
  return zone;
}

}  // namespace hoistd
