// Host memory that sessions lease to write to: who has which pieces of it.
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
#include "daemon/terms/ids.h"
#include "daemon/terms/user.h"

namespace hoistd {

// A slab of an arena; the worker maps them side by side.
struct ArenaPiece {
  uint64_t bytes = 0;
  OwnerId owner;           // Of its place, once it has one.
  uint64_t offset = 0;     // Likewise, in the device's span.
  bool made_anew = false;  // Else an earlier arena of the user had it.
};

struct Arena {
  SessionId session;
  User uid;
  DeviceIndex device;
  uint64_t bytes = 0;  // Of all pieces.
  std::vector<ArenaPiece> pieces;
  bool placed = false;  // They have places, some of which may be coming.
  // Of one that was not granted yet; nullopt: it was.
  std::optional<RequestId> request;
  absl::Time deadline;    // For places.
  uint64_t tried_at = 0;  // Node's space epoch when there were none, and
  absl::Status blocked;   // why. Unavailable: some are about to come.
};

// An arena counts for its user from when it is asked for.
//
// Threads:  one at a time.
// Owns:     the arenas. Borrows `quota`, which must outlive this object.
// Bounds:   their bytes, by quotas and by the memory.
class ArenaBook {
 public:
  // Each piece but the last is of `piece_bytes`, or more where they would be
  // too many for one message.
  static constexpr uint64_t kMostPieces = 240;
  static std::vector<ArenaPiece> Cut(uint64_t bytes, uint64_t piece_bytes,
                                     uint64_t granularity);

  explicit ArenaBook(QuotaBook& quota) : quota_(quota) {}
  ArenaBook(const ArenaBook&) = delete;
  ArenaBook& operator=(const ArenaBook&) = delete;

  // Sets `bytes`.
  const Arena& Add(ArenaId id, Arena arena);
  // Its places are nobody's any more.
  void Erase(ArenaId id);
  // It was tried at this epoch, in vain.
  void Block(ArenaId id, uint64_t epoch, absl::Status why);
  // As its pieces, with their places.
  void Place(ArenaId id, std::vector<ArenaPiece> pieces);
  void Grant(ArenaId id);

  // nullptr: there is none.
  const Arena* Find(ArenaId id) const;
  const Arena& At(ArenaId id) const { return arenas_.at(id); }
  // Of whose place this is the owner.
  std::optional<ArenaId> Of(OwnerId owner) const;
  std::vector<ArenaId> Of(SessionId session) const;
  const std::map<ArenaId, Arena>& all() const { return arenas_; }
  // Those without places, in the order in which they came.
  const std::set<ArenaId>& waiting() const { return waiting_; }
  // Those of them to be refused. What is about to come is waited for.
  std::vector<ArenaId> Late(absl::Time now) const;
  absl::Time NextDeadline() const;

  // Puts what the arenas' users hold into `counted`, anew.
  void CountInto(QuotaBook& counted) const;
  // What is not so is our bug. For tests.
  void Check() const;

 private:
  QuotaBook& quota_;
  std::map<ArenaId, Arena> arenas_;
  std::map<OwnerId, ArenaId> owners_;  // Of pieces that have places.
  std::set<ArenaId> waiting_;
};

}  // namespace hoistd

#endif  // HOIST_DAEMON_CORE_ARENA_BOOK_H_
