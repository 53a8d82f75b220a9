// Slabs apart: one image each.
#include <algorithm>
#include <set>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "daemon/base/status.h"
#include "daemon/core/device_space.h"

namespace hoistd {

absl::StatusOr<uint64_t> DeviceSpace::AllocateApart(const Want& want,
                                                    OwnerId owner) {
  const uint64_t bytes = InGranules(want.bytes);
  if (const auto* slab = apart_.Take(want.zone, bytes, owner)) {
    return slab->spec.offset;
  }
  HOIST_RETURN_IF_ERROR(apart_.MayAdd(want.zone.backing));
  if (bytes > BudgetFor(want)) return NoSpace(want.bytes);
  const auto* slab = apart_.Add(want.zone, SlabId(++last_slab_), bytes, owner);
  if (slab == nullptr) {
    return absl::ResourceExhaustedError("the device's slabs are too scattered");
  }
  work_.push_back({SlabWork::Kind::kMake, device_, slab->spec});
  Count(want.zone, bytes);
  coming_ += bytes;
  return slab->spec.offset;
}

bool DeviceSpace::IsComing(uint64_t offset) const {
  const ApartSlabs::Slab* slab = apart_.At(offset);
  return slab != nullptr && !slab->ready();
}

void DeviceSpace::GiveUp(uint64_t offset) {
  const ApartSlabs::Slab slab = *apart_.At(offset);
  const auto asked = std::erase_if(work_, [&](const SlabWork& work) {
    return work.kind == SlabWork::Kind::kMake && work.slab.id == slab.spec.id;
  });
  if (asked == 0) return apart_.Free(offset);
  apart_.Remove(offset);
  coming_ -= slab.spec.bytes;
  Uncount(slab.zone, slab.spec.bytes);
}

void DeviceSpace::FreeToZero(uint64_t offset) {
  work_.push_back({SlabWork::Kind::kZero, device_, apart_.At(offset)->spec});
  apart_.FreeToZero(offset);
}

void DeviceSpace::ZeroFree() {
  const std::set<uint64_t> free = apart_.free();
  for (const uint64_t offset : free) {
    const ApartSlabs::Slab& slab = *apart_.At(offset);
    if (slab.zone.writable && slab.ready()) FreeToZero(offset);
  }
}

std::optional<ZonedSlab> DeviceSpace::SlabZeroed(SlabId id,
                                                 const absl::Status& zeroed) {
  const ApartSlabs::Slab* slab = apart_.Find(id);
  if (slab == nullptr) return std::nullopt;
  const ZonedSlab zoned = {slab->zone, slab->spec, slab->owner};
  if (zeroed.ok()) {
    apart_.Zeroed(zoned.slab.offset);
    return zoned;
  }
  apart_.Remove(zoned.slab.offset);
  shares_.erase(id);
  Uncount(zoned.zone, zoned.slab.bytes);
  return zoned;
}

void DeviceSpace::ReleaseWritable(const Want& want) {
  const Room all = {.bytes = bounds_.left() + apart_.free_writable()};
  if (!IsEnough(want, all)) return;
  const std::set<uint64_t> free = apart_.free();
  for (const uint64_t offset : free) {
    if (IsEnough(want, {.bytes = bounds_.left()})) return;
    const ApartSlabs::Slab slab = *apart_.At(offset);
    if (slab.zone.writable) Destroy(slab);
  }
}

ZonedSlab DeviceSpace::ApartMade(const ApartSlabs::Slab& slab,
                                 const absl::StatusOr<SlabShare>& made) {
  const ZonedSlab zoned = {slab.zone, slab.spec, slab.owner};
  coming_ -= zoned.slab.bytes;
  if (made.ok()) {
    shares_.emplace(zoned.slab.id, *made);
    apart_.Made(zoned.slab.offset);
    return zoned;
  }
  Uncount(zoned.zone, zoned.slab.bytes);
  bounds_.Refuse(made.status());
  apart_.Remove(zoned.slab.offset);
  return zoned;
}

absl::Status DeviceSpace::RestoreApart(const SlabSpec& slab, Zone zone,
                                       const SlabShare& share) {
  if (slab.bytes == 0 || slab.bytes % granularity_ != 0 ||
      slab.offset % granularity_ != 0 ||
      slab.bytes > bounds_.most() - allocated() || shares_.contains(slab.id)) {
    return absl::InvalidArgumentError(absl::StrCat(
        "a slab of ", slab.bytes, " bytes cannot lie at ", slab.offset));
  }
  HOIST_RETURN_IF_ERROR(apart_.Restore(zone, slab));
  shares_.emplace(slab.id, share);
  Count(zone, slab.bytes);
  SkipIds(slab.id.number());
  return absl::OkStatus();
}

bool DeviceSpace::CanClose(const ApartSlabs::Slab& slab, bool idle,
                           OpenedFn opened) {
  const Opened who = opened(slab.spec.id);
  return who == Opened::kNobody || (who == Opened::kIdle && idle);
}

// Free slabs first, then those with the least valuable images.
void DeviceSpace::AddRoomApart(const Want& want, bool mine, bool idle,
                               KeepValueFn value, OpenedFn opened,
                               Room& room) const {
  std::vector<std::pair<double, const ApartSlabs::Slab*>> movable;
  const auto add = [&](const ApartSlabs::Slab& slab) {
    if (opened(slab.spec.id) == Opened::kIdle)
      room.idle.push_back(slab.spec.id);
    if (slab.owner.has_value()) room.victims.push_back(*slab.owner);
    room.bytes += slab.spec.bytes;
    room.by_zone[slab.zone] += slab.spec.bytes;
  };
  const auto gains = [&](const ApartSlabs::Slab& slab) {
    return Gains(want, slab.zone, slab.spec.bytes, room);
  };
  if (IsEnough(want, room)) return;
  for (const auto& [offset, slab] : apart_.all()) {
    if ((slab.zone == want.zone) != mine || slab.coming ||
        !CanClose(slab, idle, opened)) {
      continue;
    }
    if (slab.owner.has_value()) {
      const std::optional<double> worth = value(*slab.owner);
      if (worth.has_value()) movable.emplace_back(*worth, &slab);
    } else if (!IsEnough(want, room) && gains(slab)) {
      add(slab);
    }
  }
  std::sort(movable.begin(), movable.end());
  for (const auto& [worth, slab] : movable) {
    if (IsEnough(want, room)) return;
    if (gains(*slab)) add(*slab);
  }
}

void DeviceSpace::GiveBackApart(const Want& want, bool mine, OpenedFn opened) {
  const std::set<uint64_t> free = apart_.free();
  for (const uint64_t offset : free) {
    if (IsEnough(want, {.bytes = bounds_.left()})) return;
    const ApartSlabs::Slab slab = *apart_.At(offset);
    if ((slab.zone == want.zone) != mine ||
        opened(slab.spec.id) != Opened::kNobody ||
        !Gains(want, slab.zone, slab.spec.bytes, {})) {
      continue;
    }
    Destroy(slab);
  }
}

void DeviceSpace::ReleaseApart(Backing backing, OpenedFn opened) {
  const std::set<uint64_t> free = apart_.free();
  for (const uint64_t offset : free) {
    if (apart_.MayAdd(backing).ok()) return;
    const ApartSlabs::Slab slab = *apart_.At(offset);
    if (opened(slab.spec.id) == Opened::kNobody) Destroy(slab);
  }
}

std::vector<OwnerId> DeviceSpace::MovableApart(KeepValueFn value,
                                               OpenedFn opened) const {
  std::vector<std::pair<double, OwnerId>> movable;
  for (const auto& [offset, slab] : apart_.all()) {
    if (slab.coming || !slab.owner.has_value() ||
        opened(slab.spec.id) != Opened::kNobody) {
      continue;
    }
    const std::optional<double> worth = value(*slab.owner);
    if (worth.has_value()) movable.emplace_back(*worth, *slab.owner);
  }
  std::sort(movable.begin(), movable.end());
  std::vector<OwnerId> owners;
  for (const auto& [worth, owner] : movable) owners.push_back(owner);
  return owners;
}

std::vector<SlabId> DeviceSpace::IdleApart(KeepValueFn value,
                                           OpenedFn opened) const {
  std::vector<SlabId> idle;
  for (const auto& [offset, slab] : apart_.all()) {
    if (!slab.coming && opened(slab.spec.id) == Opened::kIdle &&
        (!slab.owner.has_value() || value(*slab.owner).has_value())) {
      idle.push_back(slab.spec.id);
    }
  }
  return idle;
}

void DeviceSpace::Destroy(const ApartSlabs::Slab& slab) {
  const ApartSlabs::Slab gone = slab;
  work_.push_back({SlabWork::Kind::kDestroy, device_, gone.spec});
  apart_.Remove(gone.spec.offset);
  shares_.erase(gone.spec.id);
  Uncount(gone.zone, gone.spec.bytes);
}

}  // namespace hoistd
