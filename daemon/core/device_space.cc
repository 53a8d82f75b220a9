#include "daemon/core/device_space.h"

#include <algorithm>
#include <iterator>

#include "absl/strings/str_cat.h"
#include "daemon/base/check.h"
#include "daemon/base/status.h"
#include "daemon/core/tier.h"

namespace hoistd {
namespace {

uint64_t RoundUp(uint64_t value, uint64_t multiple) {
  return (value + multiple - 1) / multiple * multiple;
}

uint64_t RoundDown(uint64_t value, uint64_t multiple) {
  return value / multiple * multiple;
}

}  // namespace

uint64_t DeviceSpace::SpanFor(uint64_t capacity_bytes, uint64_t granularity) {
  return kMaxZones * RoundUp(capacity_bytes, granularity);
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
  for (auto& [zone, arena] : arenas_) {
    for (auto& [base, segment] : arena.segments) {
      for (const SlabSpec& slab : segment.slabs) {
        // Nobody is left who could act on a failure here.
        device_.DestroySlab(slab.id).IgnoreError();
      }
    }
  }
}

absl::StatusOr<DeviceSpace::Arena*> DeviceSpace::ArenaOf(Zone zone) {
  if (const auto found = arenas_.find(zone); found != arenas_.end()) {
    return &found->second;
  }
  // The first stretch of the span that no arena has; one whose zone has no
  // slab any more is taken over.
  std::erase_if(arenas_,
                [](const auto& a) { return a.second.segments.empty(); });
  const uint64_t stretch = RoundUp(capacity_, granularity_);
  for (uint64_t k = 0; k < kMaxZones; ++k) {
    const bool taken = std::any_of(
        arenas_.begin(), arenas_.end(),
        [&](const auto& a) { return a.second.base == k * stretch; });
    if (taken) continue;
    Arena& arena = arenas_[zone];
    arena.base = k * stretch;
    return &arena;
  }
  return absl::ResourceExhaustedError(absl::StrCat(
      "more than ", kMaxZones,
      " users' models on one device; set models.readers = \"everyone\" so "
      "that they can share slabs, or evict some"));
}

absl::Status DeviceSpace::AddSlab(Arena& arena, Backing backing,
                                  uint64_t bytes) {
  SlabSpec slab;
  slab.id = SlabId(last_slab_ + 1);
  slab.bytes = bytes;
  slab.backing = backing;
  slab.offset = arena.base;
  Segment* end = nullptr;
  for (auto& [base, segment] : arena.segments) {
    // For islands: the first gap that is wide enough.
    if (!Contiguous(backing) && base - slab.offset >= bytes) break;
    slab.offset = base + segment.map.bytes();
    end = &segment;
  }
  if (slab.offset + bytes > arena.base + capacity_) {
    return absl::ResourceExhaustedError("the device's slabs are too scattered");
  }
  if (absl::Status s = device_.CreateSlab(slab); !s.ok()) {
    refused_ = true;
    return s;
  }
  ++last_slab_;
  allocated_ += bytes;
  if (end == nullptr || !Contiguous(backing)) {
    end = &arena.segments[slab.offset];
    end->base = slab.offset;
  }
  end->map.Grow(bytes);
  end->slabs.push_back(slab);
  return absl::OkStatus();
}

absl::StatusOr<uint64_t> DeviceSpace::Allocate(Zone zone, uint64_t bytes,
                                               OwnerId owner) {
  HOIST_ASSIGN_OR_RETURN(Arena * arena, ArenaOf(zone));
  const auto in_slabs = [&]() -> std::optional<uint64_t> {
    for (auto& [base, segment] : arena->segments) {
      if (const auto at = segment.map.Allocate(bytes, owner)) return base + *at;
    }
    return std::nullopt;
  };
  if (const auto offset = in_slabs()) return *offset;

  uint64_t missing = RoundUp(bytes, granularity_);
  if (Contiguous(zone.backing) && !arena->segments.empty()) {
    missing =
        RoundUp(bytes - arena->segments.begin()->second.map.trailing_free(),
                granularity_);
  }
  if (missing > budget()) {
    return absl::ResourceExhaustedError(
        absl::StrCat("no free space of ", HumanBytes(bytes)));
  }
  while (true) {
    const uint64_t want =
        Contiguous(zone.backing) ? slab_bytes_ : std::max(slab_bytes_, missing);
    const uint64_t slab = std::min(want, RoundDown(budget(), granularity_));
    HOIST_CHECK(slab > 0);
    HOIST_RETURN_IF_ERROR(AddSlab(*arena, zone.backing, slab));
    if (const auto offset = in_slabs()) return *offset;
  }
}

std::optional<Hole> DeviceSpace::CheapestHole(
    Zone zone, uint64_t bytes, KeepValueFn value,
    absl::FunctionRef<bool(SlabId)> imported) const {
  std::optional<Hole> best;
  const auto found = arenas_.find(zone);
  if (found != arenas_.end()) {
    const uint64_t tail = Contiguous(zone.backing) ? budget() : 0;
    for (const auto& [base, segment] : found->second.segments) {
      auto hole = segment.map.CheapestHole(bytes, tail, value);
      if (!hole.has_value()) continue;
      hole->offset += base;
      if (!best.has_value() || hole->value < best->value) best = hole;
    }
  }
  if (best.has_value()) return best;
  return HoleElsewhere(zone, bytes, value, imported);
}

// Whole segments are emptied until enough memory would come free. The zone's
// own count only where they are islands: idle ones, too small each, can make
// way for one that is large enough.
std::optional<Hole> DeviceSpace::HoleElsewhere(
    Zone zone, uint64_t bytes, KeepValueFn value,
    absl::FunctionRef<bool(SlabId)> imported) const {
  const uint64_t need = RoundUp(bytes, granularity_);
  Hole hole;
  uint64_t gain = budget();
  for (const auto& [other, arena] : arenas_) {
    if (other == zone && Contiguous(zone.backing)) continue;
    for (const auto& [base, segment] : arena.segments) {
      const std::vector<OwnerId> owners = segment.map.Owners();
      const bool open =
          std::any_of(segment.slabs.begin(), segment.slabs.end(),
                      [&](const SlabSpec& slab) { return imported(slab.id); });
      double sum = 0;
      const bool movable =
          std::all_of(owners.begin(), owners.end(), [&](OwnerId owner) {
            const auto worth = value(owner);
            sum += worth.value_or(0);
            return worth.has_value();
          });
      if (open || !movable || gain >= need) continue;
      hole.victims.insert(hole.victims.end(), owners.begin(), owners.end());
      hole.value += sum;
      gain += segment.map.bytes();
    }
  }
  if (gain < need) return std::nullopt;
  return hole;
}

absl::Status DeviceSpace::ReleaseSlabs(
    Zone zone, uint64_t bytes, absl::FunctionRef<bool(SlabId)> imported) {
  const uint64_t need = RoundUp(bytes, granularity_);
  for (auto& [other, arena] : arenas_) {
    if (other == zone && Contiguous(zone.backing)) continue;
    for (auto it = arena.segments.begin(); it != arena.segments.end();) {
      Segment& segment = it->second;
      while (budget() < need && !segment.slabs.empty() &&
             segment.map.trailing_free() >= segment.slabs.back().bytes &&
             !imported(segment.slabs.back().id)) {
        const SlabSpec slab = segment.slabs.back();
        HOIST_RETURN_IF_ERROR(device_.DestroySlab(slab.id));
        segment.slabs.pop_back();
        segment.map.Shrink(slab.bytes);
        allocated_ -= slab.bytes;
        refused_ = false;
      }
      it = segment.slabs.empty() ? arena.segments.erase(it) : std::next(it);
    }
  }
  return absl::OkStatus();
}

void DeviceSpace::Free(uint64_t offset) {
  Segment* segment = SegmentAt(offset);
  HOIST_CHECK(segment != nullptr);
  segment->map.Free(offset - segment->base);
}

std::vector<SlabSpec> DeviceSpace::SlabsOf(uint64_t offset,
                                           uint64_t bytes) const {
  std::vector<SlabSpec> slabs;
  const Segment* segment = SegmentAt(offset);
  if (segment == nullptr) return slabs;
  for (const SlabSpec& slab : segment->slabs) {
    if (slab.offset < offset + bytes && offset < slab.offset + slab.bytes) {
      slabs.push_back(slab);
    }
  }
  return slabs;
}

const DeviceSpace::Segment* DeviceSpace::SegmentAt(uint64_t offset) const {
  for (const auto& [zone, arena] : arenas_) {
    auto it = arena.segments.upper_bound(offset);
    if (it == arena.segments.begin()) continue;
    --it;
    if (offset < it->first + it->second.map.bytes()) return &it->second;
  }
  return nullptr;
}

DeviceSpace::Segment* DeviceSpace::SegmentAt(uint64_t offset) {
  return const_cast<Segment*>(std::as_const(*this).SegmentAt(offset));
}

uint64_t DeviceSpace::used() const {
  uint64_t used = 0;
  for (const auto& [zone, arena] : arenas_) {
    for (const auto& [base, segment] : arena.segments) {
      used += segment.map.used();
    }
  }
  return used;
}

uint64_t DeviceSpace::largest_free() const {
  uint64_t largest = budget();
  for (const auto& [zone, arena] : arenas_) {
    for (const auto& [base, segment] : arena.segments) {
      uint64_t free = segment.map.largest_free();
      if (Contiguous(zone.backing)) {
        free = std::max(free, segment.map.trailing_free() + budget());
      }
      largest = std::max(largest, free);
    }
  }
  return largest;
}

}  // namespace hoistd
