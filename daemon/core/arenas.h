// Arenas: host-mapped memory that one session leases and writes to.
#ifndef HOIST_DAEMON_CORE_ARENAS_H_
#define HOIST_DAEMON_CORE_ARENAS_H_

#include <cstdint>
#include <optional>
#include <set>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/time/time.h"
#include "daemon/core/arena_book.h"
#include "daemon/core/copy_table.h"
#include "daemon/core/counters.h"
#include "daemon/core/effects.h"
#include "daemon/core/model_book.h"
#include "daemon/core/node_options.h"
#include "daemon/core/node_picture.h"
#include "daemon/core/persisted.h"
#include "daemon/core/requests.h"
#include "daemon/core/space.h"
#include "daemon/core/tenure.h"
#include "daemon/types/device.h"
#include "daemon/types/ids.h"

namespace hoistd {

// Arenas consist of slabs apart in zones of their own: worker-writable memory
// never holds weights, nor another user's bytes. A closed arena's slabs are
// zeroed and kept for the user's next arena, until others need the memory.
//
// Threads:  one at a time.
// Owns:     the arenas. Borrows the rest, which must outlive this object.
// Bounds:   as ArenaBook.
class Arenas {
 public:
  Arenas(const NodeOptions& options, const std::vector<DeviceInfo>& devices,
         CopyTable& copies, ModelBook& models, QuotaBook& quota, Space& space,
         const Tenure& tenure, PersistedLog& persisted, Counters& counters);
  Arenas(const Arenas&) = delete;
  Arenas& operator=(const Arenas&) = delete;

  const ArenaBook& book() const { return book_; }

  // OK: answered once there are places, or with ResourceExhausted if there are
  // none by the deadline. Places about to come are awaited without a limit.
  absl::Status Open(RequestId request, ArenaId id, SessionId session,
                    const ArenaArgs& args, absl::Time now);
  // NotFound: the arena is none of this session's.
  absl::Status Close(SessionId session, ArenaId arena, Effects& effects);
  // The session is over: ends its arenas and requests. Returns the number of
  // arenas that it had.
  size_t CloseAllOf(SessionId session, Effects& effects);
  // A restored session has these arenas; its others are dropped. Returns the
  // missing ones, which the session is told of.
  std::vector<ArenaId> Resume(SessionId session, const std::set<ArenaId>& has,
                              Effects& effects);
  // An arena granted before this object was made. InvalidArgument: it conflicts
  // with the rest.
  absl::Status Restore(const PersistedArena& kept);
  // The place of `owner` is ready and zeroed; or the owner has lost it.
  void PieceMade(OwnerId owner, const absl::Status& made, Effects& effects);

  // Retries arenas without places, if space may have come free.
  void Advance(absl::Time now, Effects& effects);
  // Refuses requests past their deadline.
  void Expire(absl::Time now, const NodePicture& picture, Effects& effects);

 private:
  // nullopt: the node has no memory for arenas.
  std::optional<DeviceIndex> Device() const;
  absl::Status Check(SessionId session, const ArenaArgs& args) const;
  Zone ZoneOf(User uid, DeviceIndex device);
  void GiveUp(DeviceIndex device, const ArenaPiece& piece);
  void GrantIfThere(ArenaId id, Effects& effects);
  // Zeroes all memory that a worker may have written to.
  void Drop(ArenaId id, Effects& effects);
  std::string WhyNot(const Arena& arena, absl::Time now,
                     const NodePicture& picture);
  void Note(EventKind kind, const Arena& arena, Effects& effects) const;
  DeviceSpace& SpaceOf(DeviceIndex device) const {
    return space_.device(device);
  }

  const NodeOptions& options_;
  const std::vector<DeviceInfo>& devices_;
  CopyTable& copies_;
  ModelBook& models_;
  QuotaBook& quota_;
  Space& space_;
  const Tenure& tenure_;
  PersistedLog& persisted_;
  Counters& counters_;
  ArenaBook book_;
};

}  // namespace hoistd

#endif  // HOIST_DAEMON_CORE_ARENAS_H_
