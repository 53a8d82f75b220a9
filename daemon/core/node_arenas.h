// Arenas: memory in place that one session leases, and writes to.
#ifndef HOIST_DAEMON_CORE_NODE_ARENAS_H_
#define HOIST_DAEMON_CORE_NODE_ARENAS_H_

#include <cstdint>
#include <optional>
#include <set>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/time/time.h"
#include "daemon/core/arena_book.h"
#include "daemon/core/effects.h"
#include "daemon/core/node.h"
#include "daemon/core/requests.h"
#include "daemon/terms/ids.h"

namespace hoistd {

// What happens to a node's arenas. Their pieces are slabs apart, in zones of
// their own: what a worker could write to has never weights in it, nor another
// user's bytes. One that is given back is zeroed and kept for the user's next
// arena, until anybody has need of the memory.
//
// Threads:  the node's.
class NodeArenas {
 public:
  explicit NodeArenas(Node& node) : node_(node) {}

  // Replies, now or later: with ResourceExhausted where there is no place by
  // the deadline. Places that come are waited for however long that takes.
  void Open(RequestId request, SessionId session, const ArenaArgs& args,
            absl::Time now, Effects& effects);
  // NotFound: it is none of this session's.
  absl::Status Close(SessionId session, ArenaId arena, absl::Time now,
                     Effects& effects);
  // The session is over, and so is what it has or waits for; how many it had.
  size_t CloseAllOf(SessionId session, Effects& effects);
  // A restored session has these; the others go, and it is told which it has no
  // more.
  std::vector<ArenaId> Resume(SessionId session, const std::set<ArenaId>& has,
                              Effects& effects);
  // One that was granted before this node was. InvalidArgument: it does not
  // agree with the rest.
  absl::Status Restore(const KeptArena& kept);
  // The place that `owner` has is there, zeroed; or it has none any more.
  void PieceMade(OwnerId owner, const absl::Status& made, Effects& effects);

  // Looks for places for those that have none, if any may have come.
  void Advance(absl::Time now, Effects& effects);
  // Refuses those that have waited too long.
  void Expire(absl::Time now, Effects& effects);

 private:
  // nullopt: the node has no memory for any.
  std::optional<DeviceIndex> Device() const;
  absl::Status Check(SessionId session, const ArenaArgs& args) const;
  Zone ZoneOf(User uid, DeviceIndex device);
  // The pieces with places; Unavailable: some are about to come.
  absl::StatusOr<std::vector<ArenaPiece>> FindPlaces(const Arena& arena,
                                                     absl::Time now,
                                                     Effects& effects);
  absl::Status Place(const Arena& arena, std::vector<ArenaPiece>& pieces,
                     absl::Time now, Effects& effects);
  absl::Status MakeRoom(const Arena& arena, const Want& want, absl::Time now,
                        Effects& effects);
  void GiveUp(DeviceIndex device, const ArenaPiece& piece);
  void GrantIfThere(ArenaId id, Effects& effects);
  // What a worker may have written to is zeroed.
  void Drop(ArenaId id, Effects& effects);
  // Of what lies in place, to an arena; nullopt: it stays.
  std::optional<double> Worth(OwnerId owner, absl::Time now) const;
  std::string WhyNot(const Arena& arena, absl::Time now);
  void Note(EventKind kind, const Arena& arena, Effects& effects) const;
  DeviceSpace& SpaceOf(DeviceIndex device) const {
    return *node_.spaces_[device.number()];
  }

  Node& node_;
};

}  // namespace hoistd

#endif  // HOIST_DAEMON_CORE_NODE_ARENAS_H_
