// Space on devices: in existing slabs, new slabs, or slabs that idle workers
// close.
#include <algorithm>
#include <utility>

#include "daemon/base/check.h"
#include "daemon/base/status.h"
#include "daemon/core/space.h"

namespace hoistd {

absl::Status Space::WaitsForIdle() {
  return absl::UnavailableError(
      "waiting for idle workers to close device memory");
}

Room Space::RoomFor(DeviceIndex index, const Want& want, bool own, bool idle,
                    KeepValueFn worth) const {
  return device(index).RoomElsewhere(want, own, idle, worth, [&](SlabId slab) {
    return slabs_.OpenedBy(index, slab);
  });
}

absl::StatusOr<uint64_t> Space::PlaceOnDevice(const SpaceClaim& claim,
                                              OwnerId owner, uint64_t bytes,
                                              absl::Time now) {
  const DeviceIndex index = claim.copy.place.at.device;
  DeviceSpace& space = device(index);
  Want want = {ZoneOf(claim.copy), bytes};
  if (const PromiseBook& book = promises(index); book.any()) {
    want.promised = book.ByZone();
  }
  const auto worth = [&](OwnerId other) { return ValueOf(other, claim, now); };
  absl::StatusOr<uint64_t> offset = space.Allocate(want, owner);
  if (!absl::IsResourceExhausted(offset.status())) return offset;
  if (want.zone.apart && !space.MayAddApart(want.zone.backing).ok()) {
    HOIST_RETURN_IF_ERROR(FreeDescriptors(want.zone.backing, claim, now));
    offset = space.Allocate(want, owner);
    if (!absl::IsResourceExhausted(offset.status())) return offset;
  }
  // Memory kept for future arenas goes before any copy.
  space.ReleaseWritable(want);
  offset = space.Allocate(want, owner);
  if (!absl::IsResourceExhausted(offset.status())) return offset;
  if (const auto hole = space.CheapestHole(want, worth)) {
    // Device copies are always clean.
    EvictAll(hole->victims, Leaving::ForRoom(claim.copy.key.model, now));
    return space.Allocate(want, owner);
  }
  const Room room = RoomFor(index, want, /*own=*/true, /*idle=*/false, worth);
  if (room.enough) {
    EvictAll(room.victims, Leaving::ForRoom(claim.copy.key.model, now));
    space.ReleaseSlabs(
        want, [&](SlabId slab) { return slabs_.OpenedBy(index, slab); });
    return space.Allocate(want, owner);
  }
  // Whatever its purpose, it may serve this request or be given back.
  if (space.coming() > 0) {
    return absl::UnavailableError("device memory is being made");
  }
  // Only a waiter justifies disturbing workers.
  if (claim.waited_for) {
    HOIST_RETURN_IF_ERROR(AskForRoom(index, want, worth, now));
  }
  return absl::ResourceExhaustedError(offset.status().message());
}

// Unavailable: workers were asked to close enough slabs. OK: none was.
absl::Status Space::AskForRoom(DeviceIndex index, const Want& want,
                               KeepValueFn worth, absl::Time now) {
  const Room room = RoomFor(index, want, /*own=*/true, /*idle=*/true, worth);
  if (!room.enough) return absl::OkStatus();
  AskToClose(index, room.idle, std::nullopt, now);
  return WaitsForIdle();
}

// On any device: frees descriptors of slabs apart that another one needs.
absl::Status Space::FreeDescriptors(Backing backing, const SpaceClaim& claim,
                                    absl::Time now) {
  const auto may = [&] { return spaces_[0]->MayAddApart(backing); };
  const auto worth = [&](OwnerId other) { return ValueOf(other, claim, now); };
  for (uint32_t d = 0; d < devices() && !may().ok(); ++d) {
    const DeviceIndex index(d);
    const auto opened = [&](SlabId slab) {
      return slabs_.OpenedBy(index, slab);
    };
    DeviceSpace& space = device(index);
    space.ReleaseApart(backing, opened);
    for (const OwnerId owner : space.MovableApart(worth, opened)) {
      if (may().ok()) break;
      EvictAll({owner}, Leaving::ForRoom(claim.copy.key.model, now));
      space.ReleaseApart(backing, opened);
    }
    if (may().ok() || !claim.waited_for) continue;
    const std::vector<SlabId> idle = space.IdleApart(worth, opened);
    if (idle.empty()) continue;
    AskToClose(index, idle, std::nullopt, now);
    return WaitsForIdle();
  }
  return may();
}

absl::StatusOr<std::vector<ArenaPiece>> Space::PlacePieces(
    DeviceIndex index, const Zone& zone, const std::vector<ArenaPiece>& pieces,
    absl::Time now) {
  std::vector<ArenaPiece> placed = pieces;
  const absl::Status all = PlaceEach(index, zone, placed, now);
  if (all.ok()) return placed;
  // Two arenas that wait for each other's slabs would never come.
  for (const ArenaPiece& piece : placed) {
    if (piece.owner != OwnerId()) device(index).GiveUp(piece.offset);
  }
  return all;
}

// Each placed piece has an owner.
absl::Status Space::PlaceEach(DeviceIndex index, const Zone& zone,
                              std::vector<ArenaPiece>& pieces, absl::Time now) {
  DeviceSpace& space = device(index);
  Want missing = {zone};
  for (ArenaPiece& piece : pieces) {
    const OwnerId owner = copies_.NewOwner();
    const auto offset = space.TakeFree({zone, piece.bytes}, owner);
    piece.made_anew = !offset.has_value();
    if (piece.made_anew) {
      missing.bytes += piece.bytes;
      continue;
    }
    piece.owner = owner;
    piece.offset = *offset;
  }
  if (missing.bytes == 0) return absl::OkStatus();
  HOIST_RETURN_IF_ERROR(RoomForPieces(index, missing, now));
  for (ArenaPiece& piece : pieces) {
    if (!piece.made_anew) continue;
    const OwnerId owner = copies_.NewOwner();
    HOIST_ASSIGN_OR_RETURN(piece.offset,
                           space.Allocate({zone, piece.bytes}, owner));
    piece.owner = owner;
  }
  return absl::OkStatus();
}

// Room in slabs: gives back empty ones; with host.arenas = "above", evicts idle
// weights to empty more.
absl::Status Space::RoomForPieces(DeviceIndex index, const Want& want,
                                  absl::Time now) {
  DeviceSpace& space = device(index);
  const auto opened = [&](SlabId slab) { return slabs_.OpenedBy(index, slab); };
  const auto worth = [&](OwnerId owner) { return WorthToArenas(owner, now); };
  if (!space.MayAddApart(want.zone.backing).ok()) {
    space.ReleaseApart(want.zone.backing, opened);
    HOIST_RETURN_IF_ERROR(space.MayAddApart(want.zone.backing));
  }
  const Room room = RoomFor(index, want, /*own=*/true, /*idle=*/false, worth);
  if (room.enough) {
    EvictAll(room.victims, Leaving::ForRoom({}, now));  // Always clean there.
    space.ReleaseSlabs(want, opened);
    return absl::OkStatus();
  }
  // Whatever its purpose, it may serve this request or be given back.
  if (space.coming() > 0) {
    return absl::UnavailableError("memory in place is being made");
  }
  HOIST_RETURN_IF_ERROR(AskForRoom(index, want, worth, now));
  return absl::ResourceExhaustedError("");
}

std::optional<double> Space::WorthToArenas(OwnerId owner,
                                           absl::Time now) const {
  if (!options_.arenas_evict) return std::nullopt;
  return ValueOf(owner, SpaceClaim(), now);
}

uint64_t Space::MostForArena(DeviceIndex index, const Zone& zone,
                             absl::Time now) const {
  return RoomFor(index, {zone, device(index).capacity()}, /*own=*/true,
                 /*idle=*/true,
                 [&](OwnerId owner) { return WorthToArenas(owner, now); })
      .bytes;
}

Space::SlabOutcome Space::SlabMade(DeviceIndex index, SlabId slab,
                                   const absl::StatusOr<SlabShare>& made) {
  const ZonedSlab zoned = device(index).SlabMade(slab, made);
  if (made.ok() && made->keep_fd >= 0) {
    const auto reader = models_.ReaderOf(zoned.zone.readers);
    persisted_.Add(PersistedSlab{index, zoned.slab, reader, made->keep_fd});
  }
  if (!zoned.owner.has_value()) {
    Changed();  // Its waiter proceeds, or evicts instead.
    return {};
  }
  const CopyRef* found = copies_.RefOf(*zoned.owner);
  if (found == nullptr) return {.piece = zoned.owner};
  const CopyRef ref = *found;
  Copy& copy = copies_.At(ref);
  if (!made.ok()) {  // Its place is gone with the slab.
    copies_.DropOwner(copy.owner);
    copies_.Apply(copy, ResidencyEvent::kFillFailed);
    Weigh(ref, copy);
    Changed();
  }
  return {.copy = ref};
}

std::optional<Space::SlabOutcome> Space::SlabZeroed(
    DeviceIndex index, SlabId slab, const absl::Status& zeroed) {
  const std::optional<ZonedSlab> zoned = device(index).SlabZeroed(slab, zeroed);
  if (!zoned.has_value()) return std::nullopt;
  if (!zeroed.ok()) {
    persisted_.Add(PersistedSlab{index, zoned->slab, std::nullopt, -1});
  }
  if (!zoned->owner.has_value()) Changed();
  return SlabOutcome{.piece = zoned->owner};
}

std::vector<SlabUse> Space::UseSlabs(SessionId id, DeviceIndex index,
                                     uint64_t offset, uint64_t bytes) {
  std::vector<SlabUse> slabs;
  const DeviceSpace& space = device(index);
  for (const SlabSpec& slab : space.SlabsOf(offset, bytes)) {
    if (!slabs_.Use(id, index, slab)) continue;
    slabs.push_back({slab, space.ShareOf(slab.id)});
  }
  return slabs;
}

void Space::LeaveSlabs(SessionId id, DeviceIndex index, uint64_t offset,
                       uint64_t bytes) {
  for (const SlabSpec& slab : device(index).SlabsOf(offset, bytes)) {
    if (slabs_.Leave(id, index, slab.id)) Changed();
  }
}

void Space::AskToClose(DeviceIndex index, const std::vector<SlabId>& slabs,
                       std::optional<User> uid, absl::Time now) {
  if (slabs_.Ask(index, slabs, uid, now, work_.asks)) Changed();
}

std::vector<SlabBook::Silent> Space::LookAtAsks(absl::Time now) {
  SlabBook::Looked looked = slabs_.LookAt(now);
  if (looked.changed) Changed();
  return std::move(looked.silent);
}

}  // namespace hoistd
