#include "daemon/core/arenas.h"

#include <algorithm>
#include <utility>

#include "absl/strings/str_cat.h"
#include "daemon/base/check.h"
#include "daemon/base/status.h"

namespace hoistd {

Arenas::Arenas(const NodeOptions& options,
               const std::vector<DeviceInfo>& devices, CopyTable& copies,
               ModelBook& models, QuotaBook& quota, Space& space,
               const Tenure& tenure, PersistedLog& persisted,
               Counters& counters)
    : options_(options),
      devices_(devices),
      copies_(copies),
      models_(models),
      quota_(quota),
      space_(space),
      tenure_(tenure),
      persisted_(persisted),
      counters_(counters),
      book_(quota) {}

std::optional<DeviceIndex> Arenas::Device() const {
  for (uint32_t d = 0; d < devices_.size(); ++d) {
    if (devices_[d].kind == DeviceKind::kInPlace) return DeviceIndex(d);
  }
  return std::nullopt;
}

Zone Arenas::ZoneOf(User uid, DeviceIndex device) {
  Zone zone;
  zone.readers = models_.ReadersOf(uid);
  zone.backing = devices_[device.number()].backing;
  zone.apart = true;
  zone.writable = true;
  return zone;
}

absl::Status Arenas::Check(SessionId session, const ArenaArgs& args) const {
  const Peer* peer = tenure_.PeerOf(session);
  if (peer == nullptr) {
    return absl::NotFoundError("the session is closed; connect again");
  }
  if (args.bytes == 0) {
    return absl::InvalidArgumentError("an arena of 0 bytes; ask for some");
  }
  if (tenure_.draining()) {
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
  return quota_.CheckDevice(peer->uid, *device, args.bytes);
}

absl::Status Arenas::Open(RequestId request, ArenaId id, SessionId session,
                          const ArenaArgs& args, absl::Time now) {
  HOIST_RETURN_IF_ERROR(Check(session, args));
  Arena arena;
  arena.session = session;
  arena.uid = tenure_.PeerOf(session)->uid;
  arena.device = *Device();
  arena.pieces = ArenaBook::Cut(args.bytes, options_.slab_bytes,
                                devices_[arena.device.number()].granularity);
  arena.request = request;
  arena.deadline = now + args.deadline;
  SpaceOf(arena.device).RetrySlabs();
  book_.Add(id, std::move(arena));
  return absl::OkStatus();
}

absl::Status Arenas::Close(SessionId session, ArenaId id, Effects& effects) {
  const Arena* arena = book_.Find(id);
  if (arena == nullptr || arena->session != session ||
      arena->request.has_value()) {
    return absl::NotFoundError(
        absl::StrCat("no arena ", id.number(), " of this session"));
  }
  Drop(id, effects);
  return absl::OkStatus();
}

size_t Arenas::CloseAllOf(SessionId session, Effects& effects) {
  size_t had = 0;
  for (const ArenaId id : book_.Of(session)) {
    if (!book_.At(id).request.has_value()) ++had;
    Drop(id, effects);
  }
  return had;
}

std::vector<ArenaId> Arenas::Resume(SessionId session,
                                    const std::set<ArenaId>& has,
                                    Effects& effects) {
  for (const ArenaId id : book_.Of(session)) {
    if (!has.contains(id)) Drop(id, effects);
  }
  std::vector<ArenaId> lost;
  for (const ArenaId id : has) {
    const Arena* arena = book_.Find(id);
    if (arena == nullptr || arena->session != session) lost.push_back(id);
  }
  return lost;
}

absl::Status Arenas::Restore(const PersistedArena& kept) {
  const Peer* peer = tenure_.PeerOf(kept.session);
  if (peer == nullptr) {
    return absl::FailedPreconditionError(
        absl::StrCat("session ", kept.session.number(),
                     ", which has an arena, cannot go on"));
  }
  const absl::Status disagrees = absl::InvalidArgumentError(absl::StrCat(
      "arena ", kept.id.number(), " does not agree with what else was kept"));
  if (kept.id == ArenaId() || book_.Find(kept.id) != nullptr ||
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
    const OwnerId owner = copies_.NewOwner();
    HOIST_RETURN_IF_ERROR(space.RestoreAt(
        offset, slab[0].bytes, ZoneOf(peer->uid, kept.device), owner));
    arena.pieces.push_back({slab[0].bytes, owner, offset});
  }
  book_.Add(kept.id, std::move(arena));
  return absl::OkStatus();
}

void Arenas::Advance(absl::Time now, Effects& effects) {
  const std::set<ArenaId> waiting = book_.waiting();
  for (const ArenaId id : waiting) {
    const Arena& arena = book_.At(id);
    if (arena.tried_at == space_.epoch()) continue;  // Nothing has changed.
    const uint64_t epoch = space_.epoch();
    absl::StatusOr<std::vector<ArenaPiece>> pieces = space_.PlacePieces(
        arena.device, ZoneOf(arena.uid, arena.device), arena.pieces, now);
    if (!pieces.ok()) {
      book_.Block(id, epoch, pieces.status());
      continue;
    }
    book_.Place(id, *std::move(pieces));
    GrantIfThere(id, effects);
  }
}

// No client knows the piece: its contents are unchanged.
void Arenas::GiveUp(DeviceIndex device, const ArenaPiece& piece) {
  SpaceOf(device).GiveUp(piece.offset);
}

void Arenas::PieceMade(OwnerId owner, const absl::Status& made,
                       Effects& effects) {
  const std::optional<ArenaId> id = book_.Of(owner);
  if (!id.has_value()) return;  // Given up meanwhile.
  if (made.ok()) return GrantIfThere(*id, effects);
  const Arena arena = book_.At(*id);
  book_.Erase(*id);
  for (const ArenaPiece& piece : arena.pieces) {
    if (piece.owner != owner) GiveUp(arena.device, piece);
  }
  space_.Changed();
  effects.answers.push_back(
      {*arena.request,
       absl::ResourceExhaustedError(
           absl::StrCat("the memory of an arena of ", HumanBytes(arena.bytes),
                        " could not be made: ", std::string(made.message())))});
}

void Arenas::GrantIfThere(ArenaId id, Effects& effects) {
  const Arena& arena = book_.At(id);
  const DeviceSpace& space = SpaceOf(arena.device);
  const auto coming = [&](const ArenaPiece& piece) {
    return space.IsComing(piece.offset);
  };
  if (std::any_of(arena.pieces.begin(), arena.pieces.end(), coming)) return;
  ArenaGrant grant;
  grant.id = id;
  grant.device = arena.device;
  grant.bytes = arena.bytes;
  PersistedArena kept = {id, arena.session, arena.device, {}};
  for (const ArenaPiece& piece : arena.pieces) {
    const SlabSpec slab = space.SlabsOf(piece.offset, piece.bytes).at(0);
    grant.slabs.push_back({slab, space.ShareOf(slab.id)});
    kept.offsets.push_back(piece.offset);
    (piece.made_anew ? counters_.arena_made_bytes
                     : counters_.arena_reused_bytes) += piece.bytes;
  }
  Answer answer = {*arena.request, absl::OkStatus()};
  answer.arena = std::move(grant);
  effects.answers.push_back(std::move(answer));
  persisted_.Add(std::move(kept));
  Note(EventKind::kArenaOpened, arena, effects);
  book_.Grant(id);
}

void Arenas::Drop(ArenaId id, Effects& effects) {
  const Arena arena = book_.At(id);
  const bool granted = !arena.request.has_value();
  if (granted) {
    persisted_.Add(PersistedArena{id, arena.session, arena.device, {}});
    Note(EventKind::kArenaClosed, arena, effects);
  }
  book_.Erase(id);
  if (!arena.placed) return;
  for (const ArenaPiece& piece : arena.pieces) {
    if (granted) {
      SpaceOf(arena.device).FreeToZero(piece.offset);
    } else {
      GiveUp(arena.device, piece);
    }
  }
  space_.Changed();
}

void Arenas::Expire(absl::Time now, const NodePicture& picture,
                    Effects& effects) {
  for (const ArenaId id : book_.Late(now)) {
    const Arena& arena = book_.At(id);
    effects.answers.push_back(
        {*arena.request,
         absl::ResourceExhaustedError(WhyNot(arena, now, picture))});
    book_.Erase(id);
    space_.Changed();
  }
}

std::string Arenas::WhyNot(const Arena& arena, absl::Time now,
                           const NodePicture& picture) {
  const uint64_t most =
      space_.MostForArena(arena.device, ZoneOf(arena.uid, arena.device), now);
  return absl::StrCat(
      "an arena ",
      picture.TextFor(tenure_.PeerOf(arena.session),
                      {arena.blocked, OnDevice(arena.device), arena.bytes}),
      "; one of ", HumanBytes(most), " would be enough now",
      options_.arenas_evict
          ? ""
          : "; host.arenas = \"above\" in hoistd.toml lets arenas take the "
            "place of weights that nobody uses");
}

void Arenas::Note(EventKind kind, const Arena& arena, Effects& effects) const {
  NodeEvent event;
  event.kind = kind;
  event.at = OnDevice(arena.device);
  event.session = arena.session;
  event.bytes = arena.bytes;
  effects.events.push_back(std::move(event));
}

}  // namespace hoistd
