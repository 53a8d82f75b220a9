#include "daemon/core/node_arenas.h"

#include <algorithm>
#include <utility>

#include "absl/strings/str_cat.h"
#include "daemon/base/check.h"
#include "daemon/base/status.h"

namespace hoistd {

std::optional<DeviceIndex> NodeArenas::Device() const {
  for (uint32_t d = 0; d < node_.devices_.size(); ++d) {
    if (node_.devices_[d].kind == DeviceKind::kInPlace) return DeviceIndex(d);
  }
  return std::nullopt;
}

Zone NodeArenas::ZoneOf(User uid, DeviceIndex device) {
  Zone zone;
  zone.readers = node_.models_.ReadersOf(uid);
  zone.backing = node_.devices_[device.number()].backing;
  zone.apart = true;
  zone.writable = true;
  return zone;
}

absl::Status NodeArenas::Check(SessionId session, const ArenaArgs& args) const {
  const Peer* peer = node_.PeerOf(session);
  if (peer == nullptr) {
    return absl::NotFoundError("the session is closed; connect again");
  }
  if (args.bytes == 0) {
    return absl::InvalidArgumentError("an arena of 0 bytes; ask for some");
  }
  if (node_.draining_) {
    return absl::UnavailableError("hoistd is draining and leases no arena");
  }
  const std::optional<DeviceIndex> device = Device();
  if (!device.has_value()) {
    return absl::UnimplementedError(
        "this node has no memory for arenas; give host.in_place in hoistd.toml "
        "a size");
  }
  const uint64_t capacity = SpaceOf(*device).capacity();
  if (args.bytes > capacity) {
    return absl::ResourceExhaustedError(absl::StrCat(
        "an arena of ", HumanBytes(args.bytes), ", and host.in_place is ",
        HumanBytes(capacity), "; ask for less, or raise it in hoistd.toml"));
  }
  return node_.quota_.CheckDevice(peer->uid, *device, args.bytes);
}

void NodeArenas::Open(RequestId request, SessionId session,
                      const ArenaArgs& args, absl::Time now, Effects& effects) {
  if (absl::Status s = Check(session, args); !s.ok()) {
    effects.answers.push_back({request, std::move(s)});
    return;
  }
  Arena arena;
  arena.session = session;
  arena.uid = node_.PeerOf(session)->uid;
  arena.device = *Device();
  arena.pieces =
      ArenaBook::Cut(args.bytes, node_.options_.slab_bytes,
                     node_.devices_[arena.device.number()].granularity);
  arena.request = request;
  arena.deadline = now + args.deadline;
  SpaceOf(arena.device).RetrySlabs();
  node_.arenas_.Add(ArenaId(++node_.last_id_), std::move(arena));
  node_.Tick(now, effects);
}

absl::Status NodeArenas::Close(SessionId session, ArenaId id, absl::Time now,
                               Effects& effects) {
  const Arena* arena = node_.arenas_.Find(id);
  if (arena == nullptr || arena->session != session ||
      arena->request.has_value()) {
    return absl::NotFoundError(
        absl::StrCat("no arena ", id.number(), " of this session"));
  }
  Drop(id, effects);
  node_.Tick(now, effects);
  return absl::OkStatus();
}

size_t NodeArenas::CloseAllOf(SessionId session, Effects& effects) {
  size_t had = 0;
  for (const ArenaId id : node_.arenas_.Of(session)) {
    if (!node_.arenas_.At(id).request.has_value()) ++had;
    Drop(id, effects);
  }
  return had;
}

std::vector<ArenaId> NodeArenas::Resume(SessionId session,
                                        const std::set<ArenaId>& has,
                                        Effects& effects) {
  for (const ArenaId id : node_.arenas_.Of(session)) {
    if (!has.contains(id)) Drop(id, effects);
  }
  std::vector<ArenaId> lost;
  for (const ArenaId id : has) {
    const Arena* arena = node_.arenas_.Find(id);
    if (arena == nullptr || arena->session != session) lost.push_back(id);
  }
  return lost;
}

absl::Status NodeArenas::Restore(const KeptArena& kept) {
  const Peer* peer = node_.PeerOf(kept.session);
  if (peer == nullptr) {
    return absl::FailedPreconditionError(
        absl::StrCat("session ", kept.session.number(),
                     ", which has an arena, cannot go on"));
  }
  const absl::Status disagrees = absl::InvalidArgumentError(absl::StrCat(
      "arena ", kept.id.number(), " does not agree with what else was kept"));
  if (kept.id == ArenaId() || node_.arenas_.Find(kept.id) != nullptr ||
      kept.device != Device() || kept.offsets.empty()) {
    return disagrees;
  }
  DeviceSpace& space = SpaceOf(kept.device);
  Arena arena;
  arena.session = kept.session;
  arena.uid = peer->uid;
  arena.device = kept.device;
  arena.placed = true;
  for (const uint64_t offset : kept.offsets) {
    const std::vector<SlabSpec> slab = space.SlabsOf(offset, 1);
    if (slab.empty() || slab[0].offset != offset) return disagrees;
    const OwnerId owner = node_.copies_.NewOwner();
    HOIST_RETURN_IF_ERROR(space.RestoreAt(
        offset, slab[0].bytes, ZoneOf(peer->uid, kept.device), owner));
    arena.pieces.push_back({slab[0].bytes, owner, offset});
  }
  node_.arenas_.Add(kept.id, std::move(arena));
  node_.last_id_ = std::max(node_.last_id_, kept.id.number());
  return absl::OkStatus();
}

void NodeArenas::Advance(absl::Time now, Effects& effects) {
  const std::set<ArenaId> waiting = node_.arenas_.waiting();
  for (const ArenaId id : waiting) {
    const Arena& arena = node_.arenas_.At(id);
    if (arena.tried_at == node_.space_epoch_) continue;  // Nothing has changed.
    const uint64_t epoch = node_.space_epoch_;
    absl::StatusOr<std::vector<ArenaPiece>> pieces =
        FindPlaces(arena, now, effects);
    if (!pieces.ok()) {
      node_.arenas_.Block(id, epoch, pieces.status());
      continue;
    }
    node_.arenas_.Place(id, *std::move(pieces));
    GrantIfThere(id, effects);
  }
}

// All of them, or none: two that wait for each other's would never come.
absl::StatusOr<std::vector<ArenaPiece>> NodeArenas::FindPlaces(
    const Arena& arena, absl::Time now, Effects& effects) {
  std::vector<ArenaPiece> pieces = arena.pieces;
  const absl::Status placed = Place(arena, pieces, now, effects);
  if (placed.ok()) return pieces;
  for (const ArenaPiece& piece : pieces) {
    if (piece.owner != OwnerId()) GiveUp(arena.device, piece);
  }
  return placed;
}

// What is placed has an owner.
absl::Status NodeArenas::Place(const Arena& arena,
                               std::vector<ArenaPiece>& pieces, absl::Time now,
                               Effects& effects) {
  const Zone zone = ZoneOf(arena.uid, arena.device);
  DeviceSpace& space = SpaceOf(arena.device);
  const auto place = [&](ArenaPiece& piece, auto find) -> absl::Status {
    const OwnerId owner = node_.copies_.NewOwner();
    const absl::StatusOr<uint64_t> offset = find({zone, piece.bytes}, owner);
    if (!offset.ok()) return offset.status();
    piece.owner = owner;
    piece.offset = *offset;
    return absl::OkStatus();
  };
  Want missing = {zone};
  for (ArenaPiece& piece : pieces) {
    const absl::Status kept =
        place(piece, [&](const Want& want, OwnerId owner) {
          const std::optional<uint64_t> offset = space.TakeFree(want, owner);
          return offset.has_value() ? absl::StatusOr<uint64_t>(*offset)
                                    : absl::NotFoundError("");
        });
    piece.made_anew = !kept.ok();
    if (!kept.ok()) missing.bytes += piece.bytes;
  }
  if (missing.bytes == 0) return absl::OkStatus();
  HOIST_RETURN_IF_ERROR(MakeRoom(arena, missing, now, effects));
  for (ArenaPiece& piece : pieces) {
    if (piece.owner != OwnerId()) continue;
    HOIST_RETURN_IF_ERROR(place(piece, [&](const Want& want, OwnerId owner) {
      return space.Allocate(want, owner);
    }));
  }
  return absl::OkStatus();
}

std::optional<double> NodeArenas::Worth(OwnerId owner, absl::Time now) const {
  if (!node_.options_.arenas_evict) return std::nullopt;
  Need need;
  need.urgent = true;
  return node_.ValueOf(owner, need, now);
}

// Of slabs: empty ones go; with host.arenas = "above" copies of weights that
// nobody uses make them empty.
absl::Status NodeArenas::MakeRoom(const Arena& arena, const Want& want,
                                  absl::Time now, Effects& effects) {
  DeviceSpace& space = SpaceOf(arena.device);
  const auto opened = [&](SlabId slab) {
    return node_.slabs_.OpenedBy(arena.device, slab);
  };
  const auto worth = [&](OwnerId owner) { return Worth(owner, now); };
  if (!space.MayAddApart(want.zone.backing).ok()) {
    space.ReleaseApart(want.zone.backing, opened);
    HOIST_RETURN_IF_ERROR(space.MayAddApart(want.zone.backing));
  }
  const Room room =
      space.RoomElsewhere(want, /*own=*/true, /*idle=*/false, worth, opened);
  if (room.enough) {
    node_.EvictAll(room.victims, now, effects);  // Always clean there.
    space.ReleaseSlabs(want, opened);
    return absl::OkStatus();
  }
  // For whomever it was made, it may go to who asks now, or be given back.
  if (space.coming() > 0) {
    return absl::UnavailableError("memory in place is being made");
  }
  HOIST_RETURN_IF_ERROR(
      node_.AskForRoom(arena.device, want, worth, now, effects));
  return absl::ResourceExhaustedError("");
}

// Nobody was told of it: what lies there is what did before.
void NodeArenas::GiveUp(DeviceIndex device, const ArenaPiece& piece) {
  SpaceOf(device).GiveUp(piece.offset);
}

void NodeArenas::PieceMade(OwnerId owner, const absl::Status& made,
                           Effects& effects) {
  const std::optional<ArenaId> id = node_.arenas_.Of(owner);
  if (!id.has_value()) return;  // Given up meanwhile.
  if (made.ok()) return GrantIfThere(*id, effects);
  const Arena arena = node_.arenas_.At(*id);
  node_.arenas_.Erase(*id);
  for (const ArenaPiece& piece : arena.pieces) {
    if (piece.owner != owner) GiveUp(arena.device, piece);
  }
  ++node_.space_epoch_;
  effects.answers.push_back(
      {*arena.request,
       absl::ResourceExhaustedError(
           absl::StrCat("the memory of an arena of ", HumanBytes(arena.bytes),
                        " could not be made: ", std::string(made.message())))});
}

void NodeArenas::GrantIfThere(ArenaId id, Effects& effects) {
  const Arena& arena = node_.arenas_.At(id);
  const DeviceSpace& space = SpaceOf(arena.device);
  const auto coming = [&](const ArenaPiece& piece) {
    return space.IsComing(piece.offset);
  };
  if (std::any_of(arena.pieces.begin(), arena.pieces.end(), coming)) return;
  ArenaGrant grant;
  grant.id = id;
  grant.device = arena.device;
  grant.bytes = arena.bytes;
  KeptArena kept = {id, arena.session, arena.device, {}};
  for (const ArenaPiece& piece : arena.pieces) {
    const SlabSpec slab = space.SlabsOf(piece.offset, piece.bytes).at(0);
    grant.slabs.push_back({slab, space.ShareOf(slab.id)});
    kept.offsets.push_back(piece.offset);
    (piece.made_anew ? node_.counters_.arena_made_bytes
                     : node_.counters_.arena_reused_bytes) += piece.bytes;
  }
  Answer answer = {*arena.request, absl::OkStatus()};
  answer.arena = std::move(grant);
  effects.answers.push_back(std::move(answer));
  node_.Keep(std::move(kept));
  Note(EventKind::kArenaOpened, arena, effects);
  node_.arenas_.Grant(id);
}

void NodeArenas::Drop(ArenaId id, Effects& effects) {
  const Arena arena = node_.arenas_.At(id);
  const bool granted = !arena.request.has_value();
  if (granted) {
    node_.Keep(KeptArena{id, arena.session, arena.device, {}});
    Note(EventKind::kArenaClosed, arena, effects);
  }
  node_.arenas_.Erase(id);
  if (!arena.placed) return;
  for (const ArenaPiece& piece : arena.pieces) {
    if (granted) {
      SpaceOf(arena.device).FreeToZero(piece.offset);
    } else {
      GiveUp(arena.device, piece);
    }
  }
  ++node_.space_epoch_;
}

void NodeArenas::Expire(absl::Time now, Effects& effects) {
  for (const ArenaId id : node_.arenas_.Late(now)) {
    const Arena& arena = node_.arenas_.At(id);
    effects.answers.push_back(
        {*arena.request, absl::ResourceExhaustedError(WhyNot(arena, now))});
    node_.arenas_.Erase(id);
    ++node_.space_epoch_;
  }
}

std::string NodeArenas::WhyNot(const Arena& arena, absl::Time now) {
  DeviceSpace& space = SpaceOf(arena.device);
  const Room most = space.RoomElsewhere(
      {ZoneOf(arena.uid, arena.device), space.capacity()}, /*own=*/true,
      /*idle=*/true, [&](OwnerId owner) { return Worth(owner, now); },
      [&](SlabId slab) { return node_.slabs_.OpenedBy(arena.device, slab); });
  return absl::StrCat(
      "an arena ",
      node_.TextFor(node_.PeerOf(arena.session),
                    {arena.blocked, OnDevice(arena.device), arena.bytes}),
      "; one of ", HumanBytes(most.bytes), " would do now",
      node_.options_.arenas_evict
          ? ""
          : "; host.arenas = \"above\" in hoistd.toml lets arenas take the "
            "place of weights that nobody uses");
}

void NodeArenas::Note(EventKind kind, const Arena& arena,
                      Effects& effects) const {
  NodeEvent event;
  event.kind = kind;
  event.at = OnDevice(arena.device);
  event.session = arena.session;
  event.bytes = arena.bytes;
  effects.events.push_back(std::move(event));
}

}  // namespace hoistd
