// Host memory that sessions lease for writing: who holds which pieces.
#ifndef HOIST_DAEMON_CORE_ARENA_BOOK_H_
#define HOIST_DAEMON_CORE_ARENA_BOOK_H_

#include <cstdint>
#include <map>
#include <optional>
#include <set>
#include <vector>

#include "absl/status/status.h"
#include "absl/time/time.h"
#include "daemon/core/quota.h"
#include "daemon/types/ids.h"
#include "daemon/types/user.h"

namespace hoistd {

// A slab of an arena; the worker maps an arena's slabs side by side.
struct ArenaPiece {
  uint64_t bytes = 0;
  OwnerId owner;           // Of its place, once placed.
  uint64_t offset = 0;     // Likewise, in the device's span.
  bool made_anew = false;  // Else an earlier arena of the user had it.
};

struct Arena {
  SessionId session;
  User uid;
  DeviceIndex device;
  uint64_t bytes = 0;  // Of all pieces.
  std::vector<ArenaPiece> pieces;
  bool placed = false;  // Pieces have places, some perhaps still coming.
  // Of an arena that is not granted yet; nullopt: granted.
  std::optional<RequestId> request;
  absl::Time deadline;    // For places.
  uint64_t tried_at = 0;  // Node's space epoch at the last refusal,
  absl::Status blocked;   // and its reason. Unavailable: places are coming.
};

// An arena counts for its user from the request on.
//
// Threads:  one at a time.
// Owns:     the arenas. Borrows `quota`, which must outlive this object.
// Bounds:   their bytes, by quotas and by the memory.
class ArenaBook {
 public:
  // The most pieces of one arena, so that they fit one message. Each piece but
  // the last has `piece_bytes`, or more to stay below this.
  static constexpr uint64_t kMostPieces = 240;
  static std::vector<ArenaPiece> Cut(uint64_t bytes, uint64_t piece_bytes,
                                     uint64_t granularity);

  explicit ArenaBook(QuotaBook& quota) : quota_(quota) {}
  ArenaBook(const ArenaBook&) = delete;
  ArenaBook& operator=(const ArenaBook&) = delete;

  // Sets `bytes`.
  const Arena& Add(ArenaId id, Arena arena);
  // Its places have no owner any more.
  void Erase(ArenaId id);
  // A try at this epoch failed.
  void Block(ArenaId id, uint64_t epoch, absl::Status why);
  // Its pieces, with their places.
  void Place(ArenaId id, std::vector<ArenaPiece> pieces);
  void Grant(ArenaId id);

  // nullptr: there is none.
  const Arena* Find(ArenaId id) const;
  const Arena& At(ArenaId id) const { return arenas_.at(id); }
  // The arena whose piece has this owner.
  std::optional<ArenaId> Of(OwnerId owner) const;
  std::vector<ArenaId> Of(SessionId session) const;
  const std::map<ArenaId, Arena>& all() const { return arenas_; }
  // Arenas without places, in order of arrival.
  const std::set<ArenaId>& waiting() const { return waiting_; }
  // Waiting arenas to refuse now. Those with places about to come wait on.
  std::vector<ArenaId> Late(absl::Time now) const;
  absl::Time NextDeadline() const;

  // Checks the book; an inconsistency is our bug. For tests.
  void Check() const;

 private:
  QuotaBook& quota_;
  std::map<ArenaId, Arena> arenas_;
  std::map<OwnerId, ArenaId> owners_;  // Of pieces that have places.
  std::set<ArenaId> waiting_;
};

}  // namespace hoistd

#endif  // HOIST_DAEMON_CORE_ARENA_BOOK_H_
