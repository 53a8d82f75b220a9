#include "daemon/core/arena_book.h"

#include <algorithm>
#include <utility>

#include "daemon/base/check.h"
#include "daemon/base/round.h"

namespace hoistd {
std::vector<ArenaPiece> ArenaBook::Cut(uint64_t bytes, uint64_t piece_bytes,
                                       uint64_t granularity) {
  const uint64_t least = (bytes + kMostPieces - 1) / kMostPieces;
  const uint64_t piece = RoundUp(std::max(piece_bytes, least), granularity);
  std::vector<ArenaPiece> pieces;
  for (uint64_t left = RoundUp(bytes, granularity); left > 0;) {
    pieces.push_back({.bytes = std::min(left, piece)});
    left -= pieces.back().bytes;
  }
  return pieces;
}

const Arena& ArenaBook::Add(ArenaId id, Arena arena) {
  arena.bytes = 0;
  for (const ArenaPiece& piece : arena.pieces) arena.bytes += piece.bytes;
  quota_.AddBytes(arena.uid, arena.device, arena.bytes);
  const auto [added, anew] = arenas_.emplace(id, std::move(arena));
  HOIST_CHECK(anew);
  if (!added->second.placed) {
    waiting_.insert(id);
  } else {
    for (const ArenaPiece& piece : added->second.pieces) {
      owners_[piece.owner] = id;
    }
  }
  return added->second;
}

void ArenaBook::Erase(ArenaId id) {
  const auto found = arenas_.find(id);
  HOIST_CHECK(found != arenas_.end());
  const Arena& arena = found->second;
  if (arena.placed) {
    for (const ArenaPiece& piece : arena.pieces) owners_.erase(piece.owner);
  }
  quota_.RemoveBytes(arena.uid, arena.device, arena.bytes);
  waiting_.erase(id);
  arenas_.erase(found);
}

void ArenaBook::Block(ArenaId id, uint64_t epoch, absl::Status why) {
  Arena& arena = arenas_.at(id);
  arena.tried_at = epoch;
  arena.blocked = std::move(why);
}

void ArenaBook::Place(ArenaId id, std::vector<ArenaPiece> pieces) {
  Arena& arena = arenas_.at(id);
  HOIST_CHECK(!arena.placed);
  arena.pieces = std::move(pieces);
  arena.placed = true;
  for (const ArenaPiece& piece : arena.pieces) owners_[piece.owner] = id;
  waiting_.erase(id);
}

void ArenaBook::Grant(ArenaId id) {
  Arena& arena = arenas_.at(id);
  HOIST_CHECK(arena.placed && arena.request.has_value());
  arena.request.reset();
}

const Arena* ArenaBook::Find(ArenaId id) const {
  const auto found = arenas_.find(id);
  return found == arenas_.end() ? nullptr : &found->second;
}

std::optional<ArenaId> ArenaBook::Of(OwnerId owner) const {
  const auto found = owners_.find(owner);
  if (found == owners_.end()) return std::nullopt;
  return found->second;
}

std::vector<ArenaId> ArenaBook::Of(SessionId session) const {
  std::vector<ArenaId> of;
  for (const auto& [id, arena] : arenas_) {
    if (arena.session == session) of.push_back(id);
  }
  return of;
}

std::vector<ArenaId> ArenaBook::Late(absl::Time now) const {
  std::vector<ArenaId> late;
  for (const ArenaId id : waiting_) {
    const Arena& arena = arenas_.at(id);
    if (arena.deadline <= now && !absl::IsUnavailable(arena.blocked)) {
      late.push_back(id);
    }
  }
  return late;
}

absl::Time ArenaBook::NextDeadline() const {
  absl::Time next = absl::InfiniteFuture();
  for (const ArenaId id : waiting_) {
    const Arena& arena = arenas_.at(id);
    if (!absl::IsUnavailable(arena.blocked)) {
      next = std::min(next, arena.deadline);
    }
  }
  return next;
}

void ArenaBook::Check() const {
  size_t owners = 0;
  for (const auto& [id, arena] : arenas_) {
    HOIST_CHECK(waiting_.contains(id) == !arena.placed);
    HOIST_CHECK(arena.placed || arena.request.has_value());
    uint64_t bytes = 0;
    for (const ArenaPiece& piece : arena.pieces) {
      bytes += piece.bytes;
      if (!arena.placed) continue;
      HOIST_CHECK(owners_.at(piece.owner) == id);
      ++owners;
    }
    HOIST_CHECK(bytes == arena.bytes && bytes > 0);
  }
  HOIST_CHECK(owners == owners_.size());
}

}  // namespace hoistd
