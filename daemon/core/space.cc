#include "daemon/core/space.h"

#include <algorithm>
#include <map>
#include <utility>

#include "daemon/base/check.h"

namespace hoistd {

Space::Space(const NodeOptions& options, const std::vector<DeviceInfo>& devices,
             CopyTable& copies, const ModelBook& models, SpillBook& disk,
             const Demand& demand, PersistedLog& persisted)
    : options_(options),
      devices_(devices),
      copies_(copies),
      models_(models),
      disk_(disk),
      demand_(demand),
      persisted_(persisted),
      promises_(devices.size()) {
  HOIST_CHECK(options_.device_capacity_bytes.size() == devices_.size());
  apart_descriptors_.most = options_.apart_descriptors;
  for (size_t i = 0; i < devices_.size(); ++i) {
    const DeviceInfo& device = devices_[i];
    DeviceSpaceOptions space;
    space.device = DeviceIndex(static_cast<uint32_t>(i));
    space.granularity = device.granularity;
    space.capacity_bytes = options_.device_capacity_bytes[i];
    space.slab_bytes = options_.slab_bytes;
    space.apart_descriptors = &apart_descriptors_;
    spaces_.push_back(std::make_unique<DeviceSpace>(space));
    HOIST_CHECK(DeviceSpace::SpanFor(spaces_[i]->capacity(),
                                     device.granularity) <= device.span_bytes);
  }
}

SpaceWork Space::TakeWork() {
  for (const std::unique_ptr<DeviceSpace>& space : spaces_) {
    for (const SlabWork& work : space->TakeWork()) {
      if (work.kind == SlabWork::Kind::kDestroy) {
        persisted_.Add(PersistedSlab{work.device, work.slab, std::nullopt, -1});
      }
      work_.slabs.push_back(work);
    }
  }
  return std::exchange(work_, {});
}

absl::Status Space::Reserve(const CopyRef& ref, Copy& copy,
                            const SpaceClaim& claim, absl::Time now) {
  if (absl::Status s = CheckReservations(ref); !s.ok()) return s;
  const uint64_t bytes = copies_.SpaceOf(ref.key);
  const OwnerId owner = copies_.NewOwner(ref);
  const bool on_device = ref.place.at.tier == Tier::kDevice;
  absl::StatusOr<uint64_t> offset =
      on_device ? PlaceOnDevice(claim, owner, bytes, now)
                : PlaceOnHost(owner, bytes, claim, now);
  if (on_device && offset.ok()) {
    // Its place decides which slabs can be given back to plans. Without this
    // check it would be brought in vain, again and again.
    if (absl::Status s = CheckReservations(ref); !s.ok()) {
      device(ref.place.at.device).Free(*offset);
      offset = std::move(s);
    }
  }
  if (!offset.ok()) {
    copies_.DropOwner(owner);
    return offset.status();
  }
  copies_.Apply(copy, ResidencyEvent::kReserve);
  copy.owner = owner;
  copy.offset = *offset;
  copy.last_use = now;
  Weigh(ref, copy);
  return absl::OkStatus();
}

// Gives all spans space, or none. A single missing span gets one place, by
// eviction if need be; several only need room in sum. Nothing is evicted before
// all are known to fit: else two needs could evict each other's parts forever.
absl::StatusOr<std::vector<SheetRead>> Space::PlaceSpans(
    const std::vector<SheetKey>& sheets, const std::vector<SheetRange>& missing,
    const SpaceClaim& claim, absl::Time now) {
  std::vector<SheetRead> placed;
  const bool whole =
      std::all_of(missing.begin(), missing.end(), [&](const SheetRange& span) {
        return PlaceWhole(sheets[span.file], span, placed);
      });
  if (whole) return placed;
  for (const SheetRead& taken : placed) host_.Free(taken.host_offset);
  placed.clear();

  uint64_t space = 0;
  for (const SheetRange& span : missing) space += PartSpace(span.bytes);
  Victims victims;
  if (missing.size() == 1) victims = HostHole(space, claim, now);
  if (!victims.has_value()) {
    victims = HostVictims(claim, now, [&](KeepValueFn worth) {
      return host_.CheapestRoom(space, worth);
    });
  }
  if (!victims.has_value()) return absl::ResourceExhaustedError("");
  if (!EvictAll(*victims, Leaving::ForRoom(claim.copy.key.model, now))) {
    return absl::UnavailableError("waiting for spills");
  }
  for (const SheetRange& span : missing) {
    if (!PlaceWhole(sheets[span.file], span, placed)) {
      PlaceInPieces(sheets[span.file], span, placed);
    }
  }
  return placed;
}

// Behind its predecessor in the sheet if possible, so that both are copied as
// one range.
bool Space::PlaceWhole(const SheetKey& sheet, const SheetRange& span,
                       std::vector<SheetRead>& placed) {
  const OwnerId owner = copies_.NewOwner();
  std::optional<uint64_t> offset = parts_.EndBefore(sheet, span.offset);
  if (offset.has_value() && host_.IsFree(*offset, PartSpace(span.bytes))) {
    host_.AllocateAt(*offset, PartSpace(span.bytes), owner);
  } else {
    offset = host_.Allocate(PartSpace(span.bytes), owner);
  }
  if (offset.has_value()) placed.push_back({span, *offset, owner});
  return offset.has_value();
}

// There is room in sum. Extents and their cuts are whole pages.
void Space::PlaceInPieces(const SheetKey& sheet, SheetRange span,
                          std::vector<SheetRead>& placed) {
  while (!PlaceWhole(sheet, span, placed)) {
    const uint64_t bytes = host_.largest_free();
    HOIST_CHECK(bytes > 0 && bytes < span.bytes);
    HOIST_CHECK(PlaceWhole(sheet, {span.file, span.offset, bytes}, placed));
    span.offset += bytes;
    span.bytes -= bytes;
  }
}

void Space::Drop(const CopyRef& ref, Copy& copy, ResidencyEvent event,
                 std::optional<Leaving> how) {
  HOIST_CHECK(copy.leases == 0 && copy.readers == 0);
  copies_.Apply(copy, event);
  FreePlace(ref, copy);
  copy = Copy{.state = copy.state, .left = how};
}

void Space::FillFailed(const CopyRef& ref, Copy& copy) {
  FreePlace(ref, copy);
  copies_.Apply(copy, ResidencyEvent::kFillFailed);
}

void Space::FreePlace(const CopyRef& ref, Copy& copy) {
  if (ref.place.at.tier == Tier::kDevice) {
    device(ref.place.at.device).Free(copy.offset);
    KeepCopy(ref, copy, /*there=*/false);
    promises_[ref.place.at.device.number()].SetIdle(ref);
  } else if (parts_.Has(ref.key)) {
    LeaveParts(ref.key);
  } else {
    FreeHost(copy.offset);
    persisted_.Add(PersistedOnHost{copy.offset, {}});
  }
  copies_.DropOwner(copy.owner);
  Changed();
}

uint64_t Space::DropModel(ModelId id) {
  ModelEntry& entry = *copies_.FindModel(id);
  uint64_t unsaved = 0;
  for (const GroupEntry& group : entry.groups) {
    if (group.unsaved()) unsaved += hoistd::SpaceOf(*group.group);
  }
  // Devices first: a model that returns without a host image gets another id,
  // and records of its device copies would have no model.
  for (const Tier tier : {Tier::kDevice, Tier::kHost}) {
    for (uint32_t g = 0; g < entry.groups.size(); ++g) {
      for (auto& [place, copy] : entry.groups[g].copies) {
        if (place.at.tier != tier || !copy.present()) continue;
        Drop({{id, GroupIndex(g)}, place}, copy, ResidencyEvent::kForget);
      }
    }
  }
  return unsaved;
}

void Space::LeaveParts(GroupKey key) {
  std::vector<uint64_t> freed;
  parts_.Leave(key, freed);
  FreeExtents(freed);
}

void Space::FreeExtents(const std::vector<uint64_t>& freed) {
  for (const uint64_t offset : freed) {
    FreeHost(offset);
    persisted_.Add(PersistedOnHost{offset, {}});
  }
}

void Space::FreeHost(uint64_t offset) {
  host_.Free(offset);
  Changed();
}

Zone Space::ZoneOf(const CopyRef& ref) const {
  Zone zone;
  zone.readers = models_.ReadersOf(*copies_.FindModel(ref.key.model)->model);
  zone.backing = ref.place.shared
                     ? Backing::kIpc
                     : devices_[ref.place.at.device.number()].backing;
  zone.apart = ref.place.apart;
  return zone;
}

std::vector<SheetKey> Space::SheetsOf(ModelId id) const {
  const Model& model = *copies_.FindModel(id)->model;
  std::vector<SheetKey> sheets;
  for (const FileIdentity& file : model.spec->identities) {
    sheets.push_back({file, models_.ReadersOf(model)});
  }
  return sheets;
}

uint64_t Space::CapacityOf(TierAt at) const {
  if (at.tier == Tier::kDevice) return device(at.device).capacity();
  return at.tier == Tier::kHost ? options_.host_capacity_bytes
                                : options_.spill_capacity_bytes;
}

uint64_t Space::UsedOf(TierAt at) const {
  return at.tier == Tier::kDevice ? device(at.device).used() : host_.used();
}

uint64_t Space::LargestFreeOf(TierAt at) const {
  return at.tier == Tier::kDevice ? device(at.device).largest_free()
                                  : host_.largest_free();
}

uint64_t Space::AllocatedOf(TierAt at) const {
  return at.tier == Tier::kDevice ? device(at.device).allocated()
                                  : host_.bytes();
}

ImageRanges Space::RangesOf(const CopyRef& ref, const Copy& copy) const {
  const Group& group = *copies_.FindGroup(ref.key)->group;
  if (parts_.Has(ref.key)) return parts_.RangesOf(ref.key, group);
  if (group.image_bytes == 0) return {};
  return {{copy.offset, 0, group.image_bytes}};
}

// Legacy IPC memory ends with its process.
void Space::KeepCopy(const CopyRef& ref, const Copy& copy, bool there) {
  if (ZoneOf(ref).backing == Backing::kIpc) return;
  PersistedCopy kept;
  kept.device = ref.place.at.device;
  kept.offset = copy.offset;
  if (there) {
    kept.key = ref.key;
    kept.group = copies_.FindGroup(ref.key)->group->name;
    kept.damaged = copy.damaged;
  }
  persisted_.Add(std::move(kept));
}

void Space::Check(std::vector<PromiseBook> counted) const {
  slabs_.Check();
  host_.CheckTotals();
  parts_.Check();
  for (const auto& space : spaces_) space->Check();
  for (const auto& [id, model] : copies_.models()) {
    for (uint32_t g = 0; g < model->groups.size(); ++g) {
      for (const auto& [place, copy] : model->groups[g].copies) {
        if (place.at.tier != Tier::kDevice || !Busy(copy)) continue;
        const CopyRef ref = {{id, GroupIndex(g)}, place};
        counted[place.at.device.number()].SetBusy(
            ref, ZoneOf(ref), hoistd::SpaceOf(*model->groups[g].group));
      }
    }
  }
  HOIST_CHECK(counted == promises_);
}

}  // namespace hoistd
