#include "daemon/core/device_space.h"

#include <algorithm>
#include <iterator>

#include "absl/strings/str_cat.h"
#include "daemon/base/check.h"
#include "daemon/base/round.h"
#include "daemon/base/status.h"
#include "daemon/types/tier.h"

namespace hoistd {
namespace {

// Zones that can each find addresses for the whole pool behind them.
constexpr uint64_t kStretches = 8;
// For slabs apart: addresses for slabs of many sizes.
constexpr uint64_t kApartStretches = 2;

}  // namespace

uint64_t DeviceSpace::SpanFor(uint64_t capacity_bytes, uint64_t granularity) {
  return (kStretches + kApartStretches) * RoundUp(capacity_bytes, granularity);
}

uint64_t DeviceSpace::SegmentsEnd() const {
  return kStretches * bounds_.most();
}

DeviceSpace::DeviceSpace(const DeviceSpaceOptions& options)
    : device_(options.device),
      granularity_(options.granularity),
      slab_bytes_(
          std::clamp(RoundUp(options.slab_bytes, granularity_), granularity_,
                     std::max(RoundDown(options.capacity_bytes, granularity_),
                              granularity_))),
      bounds_(RoundDown(options.capacity_bytes, granularity_)),
      apart_(SegmentsEnd(), kApartStretches * bounds_.most(),
             options.apart_descriptors) {}

uint64_t DeviceSpace::BudgetFor(const Want& want) const {
  const uint64_t left = bounds_.left();
  return left - std::min(left, Reserved(want, {}));
}

// Bytes of no slab, after the room's slabs have been given back.
uint64_t DeviceSpace::Reserved(const Want& want, const Room& room) const {
  uint64_t bytes = 0;
  for (const auto& [zone, promised] : want.promised) {
    if (zone == want.zone) continue;
    const auto given = room.by_zone.find(zone);
    const uint64_t has =
        allocated(zone) - (given == room.by_zone.end() ? 0 : given->second);
    bytes += promised - std::min(promised, has);
  }
  return RoundUp(bytes, granularity_);
}

bool DeviceSpace::IsEnough(const Want& want, const Room& room) const {
  return room.bytes >= InGranules(want.bytes) + Reserved(want, room) + over();
}

bool DeviceSpace::Gains(const Want& want, Zone zone, uint64_t bytes,
                        const Room& room) const {
  Room with = {.by_zone = room.by_zone};
  with.by_zone[zone] += bytes;
  return Reserved(want, with) - Reserved(want, room) < bytes;
}

uint64_t DeviceSpace::RoomBehind(Segments::const_iterator segment) const {
  const auto next = std::next(segment);
  const uint64_t end = next == segments_.end() ? SegmentsEnd() : next->first;
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

// Whether a segment will have room once all its coming slabs have come.
bool DeviceSpace::IsComing(const Want& want) const {
  return std::any_of(
      segments_.begin(), segments_.end(), [&](const auto& placed) {
        const Segment& segment = placed.second;
        return segment.zone == want.zone && !segment.coming.empty() &&
               segment.trailing_free() >= want.bytes;
      });
}

// The segment that needs the least growth; a new one if none can grow enough.
// No segment has, or will have, a large enough free range.
std::optional<DeviceSpace::Place> DeviceSpace::PlaceFor(const Want& want) {
  std::optional<Place> best;
  for (auto it = segments_.begin(); it != segments_.end(); ++it) {
    Segment& segment = it->second;
    if (segment.zone != want.zone || !Contiguous(want.zone.backing)) continue;
    Place place = {EndOf(it),
                   RoundUp(want.bytes - segment.trailing_free(), granularity_),
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
    Segments::const_iterator before;  // end(): there is none.
  };
  std::vector<Gap> gaps;
  Gap gap = {0, 0, segments_.end()};
  for (auto it = segments_.begin(); it != segments_.end(); ++it) {
    gap.end = it->first;
    gaps.push_back(gap);
    gap = {EndOf(it), 0, it};
  }
  gap.end = SegmentsEnd();
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
    const uint64_t stretch =
        RoundUp(g.begin, std::max<uint64_t>(bounds_.most(), 1));
    if (!apart.has_value() && stretch + bounds_.most() <= g.end) {
      apart = at(stretch, g);
    }
    if (widest == nullptr || g.end - g.begin > widest->end - widest->begin) {
      widest = &g;
    }
  }
  if (apart.has_value() || widest == nullptr) return apart;
  // The segment before the gap can double.
  uint64_t offset = widest->begin;
  if (widest->before != segments_.end() &&
      Contiguous(widest->before->second.zone.backing)) {
    offset += std::min(widest->before->second.bytes(),
                       widest->end - widest->begin - bytes);
  }
  return at(offset, *widest);
}

void DeviceSpace::Count(Zone zone, uint64_t bytes) {
  bounds_.Take(bytes);
  by_zone_[zone] += bytes;
}

void DeviceSpace::Uncount(Zone zone, uint64_t bytes) {
  bounds_.Return(bytes);
  const auto found = by_zone_.find(zone);
  found->second -= bytes;
  if (found->second == 0) by_zone_.erase(found);
}

void DeviceSpace::AddSlab(Place& place, Zone zone, uint64_t bytes) {
  SlabSpec slab;
  slab.id = SlabId(++last_slab_);
  slab.bytes = bytes;
  slab.backing = zone.backing;
  slab.offset = place.offset;
  work_.push_back({SlabWork::Kind::kMake, device_, slab});
  Count(zone, bytes);
  coming_ += bytes;
  if (place.segment == nullptr) {
    place.segment = &segments_[slab.offset];
    place.segment->zone = zone;
  }
  place.segment->coming.push_back(slab);
  place.segment->coming_bytes += bytes;
  place.offset += bytes;
  place.room -= bytes;
  place.missing -= std::min(place.missing, bytes);
}

ZonedSlab DeviceSpace::SlabMade(SlabId id,
                                const absl::StatusOr<SlabShare>& made) {
  if (const ApartSlabs::Slab* apart = apart_.Find(id)) {
    return ApartMade(*apart, made);
  }
  const auto it =
      std::find_if(segments_.begin(), segments_.end(), [&](const auto& placed) {
        const Segment& segment = placed.second;
        return !segment.coming.empty() && segment.coming.front().id == id;
      });
  HOIST_CHECK(it != segments_.end());
  Segment& segment = it->second;
  const SlabSpec slab = segment.coming.front();
  segment.coming.pop_front();
  segment.coming_bytes -= slab.bytes;
  coming_ -= slab.bytes;
  if (made.ok()) {
    segment.map.Grow(slab.bytes);
    segment.slabs.push_back(slab);
    shares_.emplace(id, *made);
    return {segment.zone, slab, std::nullopt};
  }
  Uncount(segment.zone, slab.bytes);
  bounds_.Refuse(made.status());
  // The part behind the gap becomes a segment of its own.
  const Zone zone = segment.zone;
  Segment behind;
  behind.zone = zone;
  behind.coming.swap(segment.coming);
  std::swap(behind.coming_bytes, segment.coming_bytes);
  if (segment.slabs.empty()) segments_.erase(it);
  if (!behind.coming.empty()) {
    segments_.emplace(slab.offset + slab.bytes, std::move(behind));
  }
  return {zone, slab, std::nullopt};
}

absl::Status DeviceSpace::Restore(const SlabSpec& slab, Zone zone,
                                  const SlabShare& share) {
  const uint64_t span = SegmentsEnd();
  if (slab.apart) return RestoreApart(slab, zone, share);
  auto last = segments_.empty() ? segments_.end() : std::prev(segments_.end());
  const uint64_t end = segments_.empty() ? 0 : EndOf(last);
  if (slab.offset < end || slab.offset % granularity_ != 0 || slab.bytes == 0 ||
      slab.bytes % granularity_ != 0 ||
      slab.bytes > bounds_.most() - allocated() || slab.offset > span ||
      slab.bytes > span - slab.offset || slab.backing != zone.backing ||
      shares_.contains(slab.id)) {
    return absl::InvalidArgumentError(absl::StrCat(
        "a slab of ", slab.bytes, " bytes cannot lie at ", slab.offset));
  }
  Segment* segment = nullptr;
  if (end == slab.offset && last != segments_.end() &&
      last->second.zone == zone && Contiguous(zone.backing)) {
    segment = &last->second;
  } else {
    segment = &segments_[slab.offset];
    segment->zone = zone;
  }
  segment->map.Grow(slab.bytes);
  segment->slabs.push_back(slab);
  shares_.emplace(slab.id, share);
  Count(zone, slab.bytes);
  SkipIds(slab.id.number());
  return absl::OkStatus();
}

absl::Status DeviceSpace::RestoreAt(uint64_t offset, uint64_t bytes, Zone zone,
                                    OwnerId owner) {
  if (apart_.Holds(offset)) {
    return apart_.RestoreAt(zone, offset, InGranules(bytes), owner);
  }
  uint64_t base = 0;
  const Segment* const found = SegmentAt(offset, &base);
  if (found == nullptr || bytes == 0 || bytes > bounds_.most() ||
      found->zone != zone || !found->map.IsFree(offset - base, bytes)) {
    return absl::InvalidArgumentError(
        absl::StrCat(bytes, " bytes cannot lie at ", offset));
  }
  segments_.at(base).map.AllocateAt(offset - base, bytes, owner);
  return absl::OkStatus();
}

std::vector<ZonedSlab> DeviceSpace::AllSlabs() const {
  std::vector<ZonedSlab> all;
  for (const auto& [base, segment] : segments_) {
    for (const SlabSpec& slab : segment.slabs) {
      all.push_back({segment.zone, slab, std::nullopt});
    }
  }
  for (const auto& [offset, slab] : apart_.all()) {
    if (!slab.coming) all.push_back({slab.zone, slab.spec, std::nullopt});
  }
  return all;
}

absl::StatusOr<uint64_t> DeviceSpace::Allocate(const Want& want,
                                               OwnerId owner) {
  if (want.zone.apart) return AllocateApart(want, owner);
  if (const auto offset = InSlabs(want, owner)) return *offset;
  const absl::Status coming =
      absl::UnavailableError("device memory for it is being made");
  if (IsComing(want)) return coming;
  const auto budget = [&] { return BudgetFor(want); };
  std::optional<Place> place = PlaceFor(want);
  if (place.has_value() ? place->missing > budget() : want.bytes > budget()) {
    return NoSpace(want.bytes);
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
    AddSlab(*place, want.zone, size);
  }
  return coming;
}

absl::Status DeviceSpace::NoSpace(uint64_t bytes) const {
  return absl::ResourceExhaustedError(
      absl::StrCat("no free space of ", HumanBytes(bytes),
                   bounds_.refused().ok() ? "" : ": ",
                   std::string(bounds_.refused().message())));
}

std::optional<Hole> DeviceSpace::CheapestHole(const Want& want,
                                              KeepValueFn value) const {
  if (want.zone.apart) {
    return apart_.Cheapest(want.zone, InGranules(want.bytes), value);
  }
  std::optional<Hole> best;
  for (auto it = segments_.begin(); it != segments_.end(); ++it) {
    const Segment& segment = it->second;
    if (segment.zone != want.zone) continue;
    const uint64_t tail =
        Contiguous(want.zone.backing)
            ? segment.coming_bytes + std::min(BudgetFor(want), RoomBehind(it))
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
  Room room;
  room.bytes = bounds_.left();
  for (const bool mine : {false, true}) {
    if (mine && !own) continue;
    for (const auto& [base, segment] : segments_) {
      if ((segment.zone == want.zone) != mine) continue;
      if (!segment.coming.empty()) continue;  // At its end.
      AddRoom(segment, &want, idle, value, opened, room);
    }
    AddRoomApart(want, mine, idle, value, opened, room);
  }
  room.enough = IsEnough(want, room);
  return room;
}

std::map<Zone, uint64_t> DeviceSpace::StuckBytes(bool idle, KeepValueFn value,
                                                 OpenedFn opened) const {
  std::map<Zone, uint64_t> stuck;
  // A coming slab holds no image, and can go once it is made.
  for (const auto& [base, segment] : segments_) {
    Room room;
    AddRoom(segment, nullptr, idle, value, opened, room);
    stuck[segment.zone] += segment.map.bytes() - room.bytes;
  }
  for (const auto& [offset, slab] : apart_.all()) {
    const bool moves = !slab.owner.has_value() || value(*slab.owner);
    if (slab.coming || (moves && CanClose(slab, idle, opened))) continue;
    stuck[slab.zone] += slab.spec.bytes;
  }
  return stuck;
}

// Slabs from the segment's end, as far as they can be given back.
void DeviceSpace::AddRoom(const Segment& segment, const Want* want, bool idle,
                          KeepValueFn value, OpenedFn opened,
                          Room& room) const {
  std::vector<OwnerId> victims;
  uint64_t at = segment.map.bytes();
  for (auto slab = segment.slabs.rbegin(); slab != segment.slabs.rend();
       ++slab) {
    if (want != nullptr && (IsEnough(*want, room) ||
                            !Gains(*want, segment.zone, slab->bytes, room))) {
      break;
    }
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
    room.by_zone[segment.zone] += slab->bytes;
  }
  room.victims.insert(room.victims.end(), victims.begin(), victims.end());
}

void DeviceSpace::ReleaseSlabs(const Want& want, OpenedFn opened) {
  for (const bool own : {false, true}) {
    for (auto it = segments_.begin(); it != segments_.end();) {
      Segment& segment = it->second;
      if ((segment.zone == want.zone) == own) {
        GiveBack(want, segment, opened);
      }
      it = segment.bytes() == 0 ? segments_.erase(it) : std::next(it);
    }
    GiveBackApart(want, own, opened);
  }
}

void DeviceSpace::GiveBack(const Want& want, Segment& segment,
                           OpenedFn opened) {
  while (!IsEnough(want, {.bytes = bounds_.left()}) && segment.coming.empty() &&
         !segment.slabs.empty()) {
    const SlabSpec slab = segment.slabs.back();
    if (segment.map.trailing_free() < slab.bytes ||
        opened(slab.id) != Opened::kNobody ||
        !Gains(want, segment.zone, slab.bytes, {})) {
      return;
    }
    work_.push_back({SlabWork::Kind::kDestroy, device_, slab});
    segment.slabs.pop_back();
    segment.map.Shrink(slab.bytes);
    shares_.erase(slab.id);
    Uncount(segment.zone, slab.bytes);
  }
}

void DeviceSpace::Free(uint64_t offset) {
  if (apart_.Holds(offset)) return apart_.Free(offset);
  uint64_t base = 0;
  HOIST_CHECK(SegmentAt(offset, &base) != nullptr);
  segments_.at(base).map.Free(offset - base);
}

std::vector<SlabSpec> DeviceSpace::SlabsOf(uint64_t offset,
                                           uint64_t bytes) const {
  std::vector<SlabSpec> slabs;
  if (const ApartSlabs::Slab* apart = apart_.At(offset)) {
    slabs.push_back(apart->spec);
    return slabs;
  }
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
  uint64_t used = apart_.used();
  for (const auto& [base, segment] : segments_) used += segment.map.used();
  return used;
}

uint64_t DeviceSpace::largest_free() const {
  uint64_t largest = bounds_.left();
  for (auto it = segments_.begin(); it != segments_.end(); ++it) {
    const ExtentMap& map = it->second.map;
    largest = std::max(largest, map.largest_free());
    if (!Contiguous(it->second.zone.backing)) continue;
    largest = std::max(largest, it->second.trailing_free() +
                                    std::min(bounds_.left(), RoomBehind(it)));
  }
  return largest;
}

void DeviceSpace::Check() const {
  uint64_t coming = 0;
  uint64_t end = 0;
  size_t made = 0;
  std::map<Zone, uint64_t> by_zone;
  for (const auto& [base, segment] : segments_) {
    HOIST_CHECK(base >= end && segment.bytes() > 0);
    segment.map.CheckTotals();
    const auto next = [&](const SlabSpec& slab) {
      HOIST_CHECK(slab.offset == end && slab.bytes > 0);
      end += slab.bytes;
    };
    end = base;
    for (const SlabSpec& slab : segment.slabs) {
      HOIST_CHECK(shares_.contains(slab.id));
      ++made;
      next(slab);
    }
    HOIST_CHECK(end == base + segment.map.bytes());
    for (const SlabSpec& slab : segment.coming) next(slab);
    HOIST_CHECK(end == base + segment.bytes());
    HOIST_CHECK(Contiguous(segment.zone.backing) ||
                segment.slabs.size() + segment.coming.size() == 1);
    coming += segment.coming_bytes;
    by_zone[segment.zone] += segment.bytes();
  }
  HOIST_CHECK(end <= SegmentsEnd());
  apart_.Check();
  for (const auto& [offset, slab] : apart_.all()) {
    HOIST_CHECK(shares_.contains(slab.spec.id) == !slab.coming);
    if (slab.coming) {
      coming += slab.spec.bytes;
    } else {
      ++made;
    }
    by_zone[slab.zone] += slab.spec.bytes;
  }
  HOIST_CHECK(made == shares_.size() && coming == coming_);
  HOIST_CHECK(by_zone == by_zone_ && allocated() <= bounds_.most());
  uint64_t allocated = 0;
  for (const auto& [zone, bytes] : by_zone) allocated += bytes;
  HOIST_CHECK(allocated == bounds_.taken());
}

}  // namespace hoistd
