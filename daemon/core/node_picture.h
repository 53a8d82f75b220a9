// The node's state for admins, and the reason of a refusal in terms that the
// asker may know.
#ifndef HOIST_DAEMON_CORE_NODE_PICTURE_H_
#define HOIST_DAEMON_CORE_NODE_PICTURE_H_

#include <cstdint>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/time/time.h"
#include "daemon/core/arena_book.h"
#include "daemon/core/audit.h"
#include "daemon/core/copy_table.h"
#include "daemon/core/counters.h"
#include "daemon/core/device_names.h"
#include "daemon/core/incoming_book.h"
#include "daemon/core/node_options.h"
#include "daemon/core/space.h"
#include "daemon/core/spill_book.h"
#include "daemon/core/supply.h"
#include "daemon/core/tenure.h"
#include "daemon/types/ids.h"

namespace hoistd {

// Read access to a node's books. Valid until the node's next event.
struct NodeBooks {
  const NodeOptions& options;
  const std::vector<DeviceInfo>& devices;
  const DeviceNames& names;
  const CopyTable& copies;
  const QuotaBook& quota;
  const ModelBook& models;
  const SpillBook& spill;
  const Space& space;
  const Tenure& tenure;
  const Supply& supply;
  const ArenaBook& arenas;
  const IncomingBook& incoming;
  const Audit& audit;
  const Counters& counters;
};

// A named holder of a tier's bytes.
struct Holder {
  std::string name;  // "minilm/encoder.layer.0".
  uint64_t bytes = 0;
};

// What uses a tier, summed over its copies.
struct TierUse {
  TierAt at;
  uint64_t capacity_bytes = 0;
  uint64_t used_bytes = 0;  // The sum of `holders`.
  uint64_t leased_bytes = 0;
  uint64_t pinned_bytes = 0;
  uint64_t largest_free_bytes = 0;
  uint64_t allocated_bytes = 0;  // Device: in slabs. Host: ready.
  // Host: bytes saved by sharing between groups of different groupings.
  uint64_t shared_bytes = 0;
  // Device: bytes of files that lie there again for other groupings.
  uint64_t doubled_bytes = 0;
  uint64_t unsaved_bytes = 0;  // Host: published, and not on disk.
  // Disk: how long it has had no room for those; 0: it has room.
  absl::Duration full_for;
  // In place: of arenas, open or kept for reuse.
  uint64_t arena_bytes = 0;
  uint64_t kept_arena_bytes = 0;
  std::vector<Holder> holders;
};

// Threads: as Node, which it only reads.
// Bounds:  looks at all copies of a tier.
class NodePicture {
 public:
  explicit NodePicture(const NodeBooks& node) : node_(node) {}

  TierUse UseOf(TierAt at, absl::Time now) const;
  // The devices', the host's, that of pageable memory if there is any, then
  // the disk's.
  std::vector<TierUse> Tiers(absl::Time now) const;
  // NotFound: the session is not visible to `asker`.
  absl::StatusOr<const SessionBook::Session*> FindSession(
      SessionId session, const Peer& asker) const;
  // The existing copies that `which` names, or all possible ones.
  absl::StatusOr<std::vector<CopyRef>> Select(const CopySelector& which,
                                              bool existing_only) const;
  // Why there is no space, and who holds it. A user learns of its own sessions
  // and models, and only the sum of all others. Admins, and a null asker, learn
  // all.
  std::string TextFor(const Peer* asker, const Blocked& blocked) const;
  // FailedPrecondition: the model cannot be forgotten now, and why.
  absl::Status InUse(const ModelEntry& entry, const Peer* asker) const;

 private:
  struct Shares;  // A tier's use as an asker may know it.

  // node_picture.cc
  TierUse UseOfMemory(TierAt at) const;
  TierUse UseOfPageable() const;
  TierUse UseOfDisk(absl::Time now) const;
  void AddCopies(TierUse& tier) const;

  // node_explain.cc
  std::string Explain(TierAt at, uint64_t bytes, const Peer* asker) const;
  std::string LeasesText(TierAt at, const Peer* asker) const;
  Shares SharesOf(TierAt at, const Peer* asker) const;
  uint64_t* ShareOf(const CopyRef& ref, const Copy& copy, const Peer* asker,
                    Shares& shares) const;
  std::string KeptText(DeviceIndex device, const Peer* asker) const;

  const NodeBooks node_;
};

}  // namespace hoistd

#endif  // HOIST_DAEMON_CORE_NODE_PICTURE_H_
