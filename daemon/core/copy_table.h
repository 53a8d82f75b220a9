// Every copy of every image: its place, its users, its history.
#ifndef HOIST_DAEMON_CORE_COPY_TABLE_H_
#define HOIST_DAEMON_CORE_COPY_TABLE_H_

#include <algorithm>
#include <compare>
#include <cstdint>
#include <deque>
#include <map>
#include <memory>
#include <optional>
#include <set>
#include <string>
#include <vector>

#include "absl/container/flat_hash_map.h"
#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "absl/time/time.h"
#include "daemon/core/pageable_book.h"
#include "daemon/core/requests.h"
#include "daemon/core/residency.h"
#include "daemon/types/ids.h"
#include "daemon/types/tier.h"

namespace hoistd {

// A tier and, on a CUDA device, the kind of slab. A group may have one copy in
// each place.
struct Place {
  TierAt at;
  bool shared = false;  // In an IPC slab, for gRPC workers.
  bool apart = false;   // In a slab of its own: see SlabSpec.

  auto operator<=>(const Place&) const = default;
};

// The place of a group's host copy.
inline const Place kHost = {OnHost(), false};

struct CopyRef {
  GroupKey key;
  Place place;

  auto operator<=>(const CopyRef&) const = default;
};

// Why and when a copy was evicted, or is to be.
struct Leaving {
  // kHeadroom: other programs of the device need its memory.
  enum class Why { kForRoom, kByAdmin, kByWorker, kHeadroom };
  Why why = Why::kForRoom;
  absl::Time at;
  ModelId room_for = {};  // kForRoom.

  static Leaving ForRoom(ModelId model, absl::Time now) {
    return {Why::kForRoom, now, model};
  }
};

// One copy of one image. `state` changes through CopyTable::Apply alone.
struct Copy {
  Residency state = Residency::kAbsent;
  OwnerId owner;         // Of its extent, while it has one.
  uint64_t offset = 0;   // Of its extent.
  uint32_t leases = 0;   // While > 0 the bytes do not move.
  uint32_t readers = 0;  // Transfers reading it; likewise.
  bool pinned = false;   // By an admin; likewise.
  bool damaged = false;  // Wrong bytes: not served to anyone new.
  absl::Time last_use;
  std::optional<TransferId> filling;  // kFilling: the transfer.
  std::optional<Leaving> left;        // kLeaving; kAbsent: if it was evicted.

  bool present() const {
    return state == Residency::kArrived || state == Residency::kPresent;
  }
  bool spilling() const {
    return state == Residency::kSpilling || state == Residency::kLeaving;
  }
  bool usable() const { return present() || spilling(); }
  // May be given to a new user.
  bool serves() const { return usable() && !damaged; }
};

// Whether only its spill to a tier below holds the copy.
inline bool OnlySpilling(const Copy& copy) {
  return copy.spilling() && copy.readers == 1 && copy.leases == 0 &&
         !copy.pinned;
}

// One group, its copies and their backing.
struct GroupEntry {
  std::shared_ptr<const Group> group;
  std::map<Place, Copy> copies;
  bool in_files = false;           // Can be read from the model's files.
  std::optional<SpillId> spilled;  // As CopyTable::SetSpilled says.
  std::vector<SpillId> damaged;    // Quarantined by the store; still take room.
  absl::Status lost;               // Not OK: no tier has the bytes any more.

  bool on_disk() const { return in_files || spilled.has_value(); }
  // Whether the host has the only copy of a published group.
  bool unsaved() const;
};

struct ModelEntry {
  ModelPtr model;
  std::deque<GroupEntry> groups;  // References survive publishing.
  // Of groups that are not missing, by names that are theirs.
  absl::flat_hash_map<absl::string_view, GroupIndex> numbers;
  GroupIndex next_place{0};        // The first missing group, or the end.
  std::optional<Content> content;  // ContentOf the spec, once computed.

  // nullopt: the model has no such group.
  std::optional<GroupIndex> Find(absl::string_view name) const;
  // Groups that no tier had at start and that were not published again.
  uint32_t missing() const;
};

// Bytes that a group takes in a tier; an empty image takes a page.
uint64_t SpaceOf(const Group& group);

// Threads: one at a time. References stay valid until their model is removed.
class CopyTable {
 public:
  explicit CopyTable(uint64_t pageable_bytes = 0) : pageable_(pageable_bytes) {}

  ModelEntry& AddModel(ModelPtr model);
  void RemoveModel(ModelId id);
  ModelEntry* FindModel(ModelId id);
  const ModelEntry* FindModel(ModelId id) const;
  GroupEntry* FindGroup(GroupKey key);
  const GroupEntry* FindGroup(GroupKey key) const;
  // Bytes that a copy of the group takes in a tier. The group must exist.
  uint64_t SpaceOf(GroupKey key) const;
  // NotFound.
  absl::StatusOr<std::shared_ptr<const ModelSpec>> SpecOf(ModelId id) const;
  // Bytes of the group's image; 0: no such group.
  uint64_t BytesOf(GroupKey key) const;
  // MODEL/GROUP; "?": no such group.
  std::string NameOf(GroupKey key) const;
  // The copy; an absent one is made if there is none. The group must exist.
  Copy& At(const CopyRef& ref);
  // nullptr: there is none.
  Copy* Find(const CopyRef& ref);

  // Records whether, and as what, the spill store has the group.
  void SetSpilled(GroupEntry& group, std::optional<SpillId> spilled);
  // Host space of the largest spilled group; 0: none is spilled.
  uint64_t largest_spilled() const {
    return spilled_.empty() ? 0 : *spilled_.rbegin();
  }

  // Images in pageable memory, which are no copies: nothing uses them there.
  PageableBook& pageable() { return pageable_; }
  const PageableBook& pageable() const { return pageable_; }
  // Takes a place in pageable memory for the host copy, which is to leave.
  // False: it need not go there, or finds no place.
  bool PageOut(const CopyRef& ref, absl::Time now);

  // Changes the state as NextState says; an illegal event is our bug.
  void Apply(Copy& copy, ResidencyEvent event);
  // The transfer fills the copy.
  void Fill(Copy& copy, TransferId by);

  OwnerId NewOwner(const CopyRef& ref);
  // An owner that is no copy yet: an image being received.
  OwnerId NewOwner();
  void SetOwner(OwnerId owner, const CopyRef& ref);
  void DropOwner(OwnerId owner);
  const CopyRef* RefOf(OwnerId owner) const;

  const std::map<ModelId, std::unique_ptr<ModelEntry>>& models() const {
    return models_;
  }

 private:
  std::map<ModelId, std::unique_ptr<ModelEntry>> models_;
  absl::flat_hash_map<OwnerId, CopyRef> owners_;
  std::multiset<uint64_t> spilled_;  // Space of each spilled group.
  PageableBook pageable_;
  uint64_t last_owner_ = 0;
};

}  // namespace hoistd

#endif  // HOIST_DAEMON_CORE_COPY_TABLE_H_
