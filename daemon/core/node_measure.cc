#include "daemon/core/node_measure.h"

#include <algorithm>
#include <tuple>
#include <utility>

namespace hoistd {
namespace {

// Keeps by name the `most` models that use most of scarce tiers.
void Fold(size_t most, NodeMeasure& found) {
  if (found.models.size() <= most) return;
  const auto more = [](const ModelMeasure& a, const ModelMeasure& b) {
    const auto rank = [](const ModelMeasure& m) {
      return std::tuple(m.device_bytes, m.in_place_bytes + m.host_bytes,
                        m.disk_bytes);
    };
    if (rank(a) != rank(b)) return rank(a) > rank(b);
    return a.id < b.id;
  };
  const auto rest = found.models.begin() + static_cast<ptrdiff_t>(most);
  std::nth_element(found.models.begin(), rest, found.models.end(), more);
  for (auto it = rest; it != found.models.end(); ++it) {
    found.other_models.device_bytes += it->device_bytes;
    found.other_models.in_place_bytes += it->in_place_bytes;
    found.other_models.host_bytes += it->host_bytes;
    found.other_models.disk_bytes += it->disk_bytes;
  }
  found.models.erase(rest, found.models.end());
}

}  // namespace

const char* ToString(Holding holding) {
  switch (holding) {  // No default: a new one must fail to compile here.
    case Holding::kHot:
      return "in_place_hot";
    case Holding::kResident:
      return "plan_resident";
    case Holding::kLeased:
      return "leased";
    case Holding::kRing:
      return "plan_ring";
    case Holding::kArena:
      return "arena";
    case Holding::kHeld:
      return "plan_held";
    case Holding::kPinned:
      return "pinned";
    case Holding::kMoving:
      return "moving";
    case Holding::kUnsaved:
      return "unsaved";
    case Holding::kCache:
      return "cache";
  }
  return "?";
}

Holding NodeMeasurer::HoldingOf(const CopyRef& ref, const Copy& copy,
                                const GroupEntry& group) const {
  const bool host = ref.place == kHost;
  const bool used = copy.leases > 0;
  if (host && used) return Holding::kHeld;
  if (!host) {
    if (used && ref.place.apart && !node_.names.IsInPlace(ref.place.at)) {
      return Holding::kHot;
    }
    if (node_.space.promises(ref.place.at.device).Promised(ref)) {
      return Holding::kResident;
    }
    if (used) return Holding::kLeased;
  }
  if (copy.pinned) return Holding::kPinned;
  if (!copy.usable() || copy.readers > 0) return Holding::kMoving;
  return host && !group.on_disk() ? Holding::kUnsaved : Holding::kCache;
}

void NodeMeasurer::AddGroup(GroupKey key, const GroupEntry& group,
                            MeasureWalk& walk) const {
  std::vector<TierMeasure>& tiers = walk.found.tiers;
  for (const auto& [place, copy] : group.copies) {
    if (copy.state == Residency::kAbsent) continue;
    const CopyRef ref = {key, place};
    uint64_t space = SpaceOf(*group.group);
    if (place == kHost) {
      if (node_.supply.restored().Awaits(key, copy)) continue;
      // Counts shared bytes once, for their first user.
      if (node_.space.parts().Has(key))
        space = node_.space.parts().OwnSpace(key);
      walk.model.host_bytes += space;
    } else if (node_.names.IsInPlace(place.at)) {
      walk.model.in_place_bytes += space;
    } else {
      walk.model.device_bytes += space;
    }
    // Devices come first, then the host.
    TierMeasure& tier =
        place == kHost ? tiers[node_.space.devices()]
                       : tiers[static_cast<size_t>(place.at.device.number())];
    const Holding holding = HoldingOf(ref, copy, group);
    // kCache is the remainder.
    if (holding != Holding::kCache) tier.of(holding) += space;
  }
  if (group.unsaved()) walk.found.unsaved_bytes += group.group->image_bytes;
  if (!group.spilled.has_value()) return;
  walk.model.disk_bytes += group.group->image_bytes;
  tiers.back().used_bytes += group.group->image_bytes;
}

void NodeMeasurer::MeasureSpace(TierMeasure& tier) const {
  if (tier.at.tier == Tier::kPageable) {
    const ExtentMap& memory = node_.copies.pageable().memory();
    tier.capacity_bytes = tier.allocated_bytes = memory.bytes();
    tier.used_bytes = memory.used();
    tier.largest_free_bytes = memory.largest_free();
    return;
  }
  tier.capacity_bytes = node_.space.CapacityOf(tier.at);
  if (tier.at.tier == Tier::kDisk) return;
  tier.used_bytes = node_.space.UsedOf(tier.at);
  tier.largest_free_bytes = node_.space.LargestFreeOf(tier.at);
  tier.allocated_bytes = node_.space.AllocatedOf(tier.at);
}

void NodeMeasurer::End(NodeMeasure& found) const {
  found.draining = node_.tenure.draining();
  found.disk_full = node_.spill.full() && found.unsaved_bytes > 0;
  found.counters = node_.counters;
  found.model_count = node_.copies.models().size();
  found.sessions = node_.tenure.sessions().all().size();
  found.leases = node_.tenure.sessions().lease_count();
  found.waiting_plans = node_.tenure.plans().waiting().size();
  for (const auto& [id, plan] : node_.tenure.plans().standing()) {
    if (!plan.ended) ++found.plans;
    found.tiers[plan.grant.device.number()].of(Holding::kRing) +=
        plan.grant.ring_bytes;
  }
  for (const auto& [id, arena] : node_.arenas.all()) {
    if (!arena.placed) continue;
    found.tiers[arena.device.number()].of(Holding::kArena) += arena.bytes;
  }
  for (const auto& [request, incoming] : node_.incoming.all()) {
    if (!incoming.offset.has_value()) continue;
    found.tiers[node_.space.devices()].of(Holding::kMoving) +=
        SpaceOf(*incoming.group);
  }
  for (TierMeasure& tier : found.tiers) {
    MeasureSpace(tier);
    uint64_t held = 0;
    for (const uint64_t bytes : tier.held) held += bytes;
    tier.of(Holding::kCache) =
        tier.used_bytes - std::min(tier.used_bytes, held);
  }
}

uint64_t NodeMeasurer::HostUsed() const { return node_.space.host().used(); }

uint64_t NodeMeasurer::DeviceUsed(DeviceIndex device) const {
  return node_.space.device(device).used();
}

bool NodeMeasurer::Step(MeasureWalk& walk) const {
  NodeMeasure& found = walk.found;
  if (!walk.at.has_value()) {
    for (uint32_t d = 0; d < node_.space.devices(); ++d) {
      found.tiers.push_back({.at = OnDevice(DeviceIndex(d))});
    }
    found.tiers.push_back({.at = OnHost()});
    if (node_.options.pageable_bytes > 0) {
      found.tiers.push_back({.at = OnPageable()});
    }
    found.tiers.push_back({.at = OnDisk()});
    walk.at = ModelId(0);
  }
  size_t left = MeasureWalk::kGroupsAStep;
  for (auto it = node_.copies.models().lower_bound(*walk.at);
       it != node_.copies.models().end(); ++it) {
    const ModelEntry& entry = *it->second;
    if (*walk.at != it->first) walk.group = 0;
    walk.at = it->first;
    if (walk.group == 0) {
      walk.model = {.id = it->first,
                    .owner = entry.model->owner,
                    .name = entry.model->spec->name};
    }
    while (walk.group < entry.groups.size()) {
      if (left-- == 0) return true;
      const GroupIndex group(walk.group);
      AddGroup({it->first, group}, entry.groups[walk.group++], walk);
    }
    found.models.push_back(std::move(walk.model));
    if (found.models.size() > 2 * walk.most_models + 64) {
      Fold(walk.most_models, found);
    }
    walk.at = ModelId(it->first.number() + 1);
    walk.group = 0;
    if (left-- == 0) return true;  // Empty ones cost, too.
  }
  Fold(walk.most_models, found);
  std::sort(found.models.begin(), found.models.end(),
            [](const auto& a, const auto& b) { return a.id < b.id; });
  End(found);
  return false;
}

}  // namespace hoistd
