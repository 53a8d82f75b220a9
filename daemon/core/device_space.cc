#include "daemon/core/device_space.h"

#include <algorithm>
#include <iterator>

#include "absl/strings/str_cat.h"
#include "daemon/base/check.h"
#include "daemon/base/status.h"
#include "daemon/terms/tier.h"

namespace hoistd {
namespace {

// Zones that each find addresses for the whole pool behind them.
constexpr uint64_t kStretches = 8;

uint64_t RoundUp(uint64_t value, uint64_t multiple) {
  return (value + multiple - 1) / multiple * multiple;
}

uint64_t RoundDown(uint64_t value, uint64_t multiple) {
  return value / multiple * multiple;
}

}  // namespace

uint64_t DeviceSpace::SpanFor(uint64_t capacity_bytes, uint64_t granularity) {
  return kStretches * RoundUp(capacity_bytes, granularity);
}

DeviceSpace::DeviceSpace(const DeviceSpaceOptions& options, Device& device)
    : device_(device),
      granularity_(device.info().granularity),
      capacity_(RoundDown(options.capacity_bytes, granularity_)),
      slab_bytes_(std::clamp(RoundUp(options.slab_bytes, granularity_),
                             granularity_, std::max(capacity_, granularity_))) {
  HOIST_CHECK(SpanFor(capacity_, granularity_) <= device.info().span_bytes);
}

DeviceSpace::~DeviceSpace() {
  for (auto& [base, segment] : segments_) {
    for (const SlabSpec& slab : segment.slabs) {
      // Nobody is left who could act on a failure here.
      device_.DestroySlab(slab.id).IgnoreError();
    }
  }
}

uint64_t DeviceSpace::Budget(uint64_t reserved_bytes) const {
  const uint64_t taken = allocated_ + RoundUp(reserved_bytes, granularity_);
  return refused_ || taken > capacity_ ? 0 : capacity_ - taken;
}

uint64_t DeviceSpace::SlabsFor(const Want& want) const {
  return RoundUp(want.bytes, granularity_) +
         RoundUp(want.reserved_bytes, granularity_);
}

uint64_t DeviceSpace::RoomBehind(Segments::const_iterator segment) const {
  const auto next = std::next(segment);
  const uint64_t end =
      next == segments_.end() ? SpanFor(capacity_, granularity_) : next->first;
  return end - EndOf(segment);
}

std::optional<uint64_t> DeviceSpace::InSlabs(const Want& want, OwnerId owner) {
  for (auto& [base, segment] : segments_) {
    if (segment.zone != want.zone) continue;
    if (const auto at = segment.map.Allocate(want.bytes, owner)) {
      return base + *at;
    }
  }
  return std::nullopt;
}

// The segment that must grow least; a new one where none can grow enough. None
// has a free piece that is large enough.
std::optional<DeviceSpace::Place> DeviceSpace::PlaceFor(const Want& want) {
  std::optional<Place> best;
  for (auto it = segments_.begin(); it != segments_.end(); ++it) {
    Segment& segment = it->second;
    if (segment.zone != want.zone || !Contiguous(want.zone.backing)) continue;
    Place place = {
        EndOf(it),
        RoundUp(want.bytes - segment.map.trailing_free(), granularity_),
        RoomBehind(it), &segment};
    if (place.missing > place.room) continue;
    if (!best.has_value() || place.missing < best->missing) best = place;
  }
  if (best.has_value()) return best;
  return NewPlace(want.zone, RoundUp(want.bytes, granularity_));
}

std::optional<DeviceSpace::Place> DeviceSpace::NewPlace(Zone zone,
                                                        uint64_t bytes) const {
  struct Gap {
    uint64_t begin, end;
    Segments::const_iterator before;  // end(): no segment is.
  };
  std::vector<Gap> gaps;
  Gap gap = {0, 0, segments_.end()};
  for (auto it = segments_.begin(); it != segments_.end(); ++it) {
    gap.end = it->first;
    gaps.push_back(gap);
    gap = {EndOf(it), 0, it};
  }
  gap.end = SpanFor(capacity_, granularity_);
  gaps.push_back(gap);

  const auto at = [&](uint64_t offset, const Gap& in) {
    return Place{offset, bytes, in.end - offset, nullptr};
  };
  const Gap* widest = nullptr;
  std::optional<Place> apart;
  for (const Gap& g : gaps) {
    if (g.end - g.begin < bytes) continue;
    if (!Contiguous(zone.backing) && g.before != segments_.end() &&
        g.before->second.zone == zone) {
      return at(g.begin, g);  // Islands need no room to grow.
    }
    const uint64_t stretch = RoundUp(g.begin, std::max<uint64_t>(capacity_, 1));
    if (!apart.has_value() && stretch + capacity_ <= g.end) {
      apart = at(stretch, g);
    }
    if (widest == nullptr || g.end - g.begin > widest->end - widest->begin) {
      widest = &g;
    }
  }
  if (apart.has_value() || widest == nullptr) return apart;
  // What is before it can become twice as large.
  uint64_t offset = widest->begin;
  if (widest->before != segments_.end() &&
      Contiguous(widest->before->second.zone.backing)) {
    offset += std::min(widest->before->second.map.bytes(),
                       widest->end - widest->begin - bytes);
  }
  return at(offset, *widest);
}

absl::Status DeviceSpace::AddSlab(Place& place, Zone zone, uint64_t bytes) {
  SlabSpec slab;
  slab.id = SlabId(last_slab_ + 1);
  slab.bytes = bytes;
  slab.backing = zone.backing;
  slab.offset = place.offset;
  if (absl::Status s = device_.CreateSlab(slab); !s.ok()) {
    refused_ = true;
    return s;
  }
  ++last_slab_;
  allocated_ += bytes;
  by_zone_[zone] += bytes;
  if (place.segment == nullptr) {
    place.segment = &segments_[slab.offset];
    place.segment->zone = zone;
  }
  place.segment->map.Grow(bytes);
  place.segment->slabs.push_back(slab);
  place.offset += bytes;
  place.room -= bytes;
  place.missing -= std::min(place.missing, bytes);
  return absl::OkStatus();
}

absl::StatusOr<uint64_t> DeviceSpace::Allocate(const Want& want,
                                               OwnerId owner) {
  if (const auto offset = InSlabs(want, owner)) return *offset;
  const auto budget = [&] { return Budget(want.reserved_bytes); };
  std::optional<Place> place = PlaceFor(want);
  if (place.has_value() ? place->missing > budget() : want.bytes > budget()) {
    return absl::ResourceExhaustedError(
        absl::StrCat("no free space of ", HumanBytes(want.bytes)));
  }
  if (!place.has_value()) {
    return absl::ResourceExhaustedError("the device's slabs are too scattered");
  }
  while (place->missing > 0) {
    uint64_t size = std::max(allocated(want.zone), place->missing);
    size = std::min(size, slab_bytes_);
    if (!Contiguous(want.zone.backing)) size = std::max(size, place->missing);
    size = std::min({size, budget(), place->room});
    HOIST_CHECK(size > 0);
    HOIST_RETURN_IF_ERROR(AddSlab(*place, want.zone, size));
  }
  const auto offset = InSlabs(want, owner);
  HOIST_CHECK(offset.has_value());
  return *offset;
}

std::optional<Hole> DeviceSpace::CheapestHole(const Want& want,
                                              KeepValueFn value) const {
  std::optional<Hole> best;
  for (auto it = segments_.begin(); it != segments_.end(); ++it) {
    const Segment& segment = it->second;
    if (segment.zone != want.zone) continue;
    const uint64_t tail =
        Contiguous(want.zone.backing)
            ? std::min(Budget(want.reserved_bytes), RoomBehind(it))
            : 0;
    auto hole = segment.map.CheapestHole(want.bytes, tail, value);
    if (!hole.has_value()) continue;
    hole->offset += it->first;
    if (!best.has_value() || hole->value < best->value) best = hole;
  }
  return best;
}

Room DeviceSpace::RoomElsewhere(const Want& want, bool own, bool idle,
                                KeepValueFn value, OpenedFn opened) const {
  const uint64_t need = SlabsFor(want);
  Room room;
  room.bytes = Budget();
  for (const bool mine : {false, true}) {
    if (mine && !own) continue;
    for (const auto& [base, segment] : segments_) {
      if ((segment.zone == want.zone) != mine) continue;
      AddRoom(segment, need, idle, value, opened, room);
    }
  }
  room.enough = room.bytes >= need;
  return room;
}

std::map<Zone, uint64_t> DeviceSpace::StuckBytes(bool idle, KeepValueFn value,
                                                 OpenedFn opened) const {
  std::map<Zone, uint64_t> stuck;
  for (const auto& [base, segment] : segments_) {
    Room room;
    AddRoom(segment, segment.map.bytes(), idle, value, opened, room);
    stuck[segment.zone] += segment.map.bytes() - room.bytes;
  }
  return stuck;
}

// Slab by slab from the segment's end, as far as they can be given back.
void DeviceSpace::AddRoom(const Segment& segment, uint64_t need, bool idle,
                          KeepValueFn value, OpenedFn opened,
                          Room& room) const {
  std::vector<OwnerId> victims;
  uint64_t at = segment.map.bytes();
  for (auto slab = segment.slabs.rbegin(); slab != segment.slabs.rend();
       ++slab) {
    if (room.bytes >= need) break;
    const Opened who = opened(slab->id);
    if (who == Opened::kKept || (who == Opened::kIdle && !idle)) break;
    at -= slab->bytes;
    const std::vector<OwnerId> owners = segment.map.OwnersFrom(at);
    if (!std::all_of(owners.begin(), owners.end(),
                     [&](OwnerId owner) { return value(owner).has_value(); })) {
      break;
    }
    victims = owners;
    if (who == Opened::kIdle) room.idle.push_back(slab->id);
    room.bytes += slab->bytes;
  }
  room.victims.insert(room.victims.end(), victims.begin(), victims.end());
}

absl::Status DeviceSpace::ReleaseSlabs(const Want& want, OpenedFn opened) {
  const uint64_t need = SlabsFor(want);
  for (const bool own : {false, true}) {
    for (auto it = segments_.begin(); it != segments_.end();) {
      Segment& segment = it->second;
      if ((segment.zone == want.zone) == own) {
        HOIST_RETURN_IF_ERROR(GiveBack(segment, need, opened));
      }
      it = segment.slabs.empty() ? segments_.erase(it) : std::next(it);
    }
  }
  return absl::OkStatus();
}

absl::Status DeviceSpace::GiveBack(Segment& segment, uint64_t until,
                                   OpenedFn opened) {
  while (Budget() < until && !segment.slabs.empty() &&
         segment.map.trailing_free() >= segment.slabs.back().bytes &&
         opened(segment.slabs.back().id) == Opened::kNobody) {
    const SlabSpec slab = segment.slabs.back();
    HOIST_RETURN_IF_ERROR(device_.DestroySlab(slab.id));
    segment.slabs.pop_back();
    segment.map.Shrink(slab.bytes);
    allocated_ -= slab.bytes;
    const auto zone = by_zone_.find(segment.zone);
    zone->second -= slab.bytes;
    if (zone->second == 0) by_zone_.erase(zone);
    refused_ = false;
  }
  return absl::OkStatus();
}

void DeviceSpace::Free(uint64_t offset) {
  uint64_t base = 0;
  HOIST_CHECK(SegmentAt(offset, &base) != nullptr);
  segments_.at(base).map.Free(offset - base);
}

std::vector<SlabSpec> DeviceSpace::SlabsOf(uint64_t offset,
                                           uint64_t bytes) const {
  std::vector<SlabSpec> slabs;
  uint64_t base = 0;
  const Segment* segment = SegmentAt(offset, &base);
  if (segment == nullptr) return slabs;
  for (const SlabSpec& slab : segment->slabs) {
    if (slab.offset < offset + bytes && offset < slab.offset + slab.bytes) {
      slabs.push_back(slab);
    }
  }
  return slabs;
}

const SlabSpec* DeviceSpace::FindSlab(SlabId id) const {
  for (const auto& [base, segment] : segments_) {
    for (const SlabSpec& slab : segment.slabs) {
      if (slab.id == id) return &slab;
    }
  }
  return nullptr;
}

const DeviceSpace::Segment* DeviceSpace::SegmentAt(uint64_t offset,
                                                   uint64_t* base) const {
  auto it = segments_.upper_bound(offset);
  if (it == segments_.begin()) return nullptr;
  --it;
  if (offset >= EndOf(it)) return nullptr;
  *base = it->first;
  return &it->second;
}

uint64_t DeviceSpace::allocated(Zone zone) const {
  const auto found = by_zone_.find(zone);
  return found == by_zone_.end() ? 0 : found->second;
}

uint64_t DeviceSpace::used() const {
  uint64_t used = 0;
  for (const auto& [base, segment] : segments_) used += segment.map.used();
  return used;
}

uint64_t DeviceSpace::largest_free() const {
  uint64_t largest = Budget();
  for (auto it = segments_.begin(); it != segments_.end(); ++it) {
    const ExtentMap& map = it->second.map;
    largest = std::max(largest, map.largest_free());
    if (!Contiguous(it->second.zone.backing)) continue;
    largest = std::max(
        largest, map.trailing_free() + std::min(Budget(), RoomBehind(it)));
  }
  return largest;
}

}  // namespace hoistd
