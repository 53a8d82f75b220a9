// Every copy of every image: where it is, who uses it, how it came to be.
#ifndef HOIST_DAEMON_CORE_COPY_TABLE_H_
#define HOIST_DAEMON_CORE_COPY_TABLE_H_

#include <compare>
#include <cstdint>
#include <deque>
#include <map>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "absl/container/flat_hash_map.h"
#include "absl/status/status.h"
#include "absl/time/time.h"
#include "daemon/core/explanation.h"
#include "daemon/core/requests.h"
#include "daemon/core/residency.h"
#include "daemon/terms/ids.h"
#include "daemon/terms/tier.h"

namespace hoistd {

// A tier, and on a CUDA device which kind of slab. A group may have a copy in
// each place.
struct Place {
  TierAt at;
  bool shared = false;  // In an IPC slab, for workers that come over gRPC.
  bool apart = false;   // In a slab of its own: see SlabSpec.

  auto operator<=>(const Place&) const = default;
};

// Where the host has a group's copy.
inline const Place kHost = {OnHost(), false};

struct CopyRef {
  GroupKey key;
  Place place;

  auto operator<=>(const CopyRef&) const = default;
};

// One copy of one image. `state` changes through CopyTable::Apply alone.
struct Copy {
  Residency state = Residency::kAbsent;
  OwnerId owner;               // Of its extent, while it has one.
  uint64_t offset = 0;         // Of its extent.
  uint32_t leases = 0;         // While > 0 the bytes stay put.
  uint32_t readers = 0;        // Transfers that read it; likewise.
  bool pinned = false;         // By an admin; likewise.
  bool awaiting_host = false;  // kFilling: its bytes are not on the host yet.
  bool awaiting_slab = false;  // kFilling: its slab is being made.
  bool fresh = false;          // Prefetched and not used yet.
  bool leaving = false;        // To be dropped when it is spilled.
  bool damaged = false;        // Its bytes are wrong: for nobody new.
  absl::Time last_use;
  std::optional<TransferId> filling;
  std::optional<Leaving> left;  // kAbsent: how it went, if it made room.

  bool usable() const {
    return state == Residency::kPresent || state == Residency::kSpilling;
  }
  // Whoever wants it may have it.
  bool serves() const { return usable() && !damaged; }
};

// Whether nothing holds the copy but that it is being written to the disk.
inline bool OnlySpilling(const Copy& copy) {
  return copy.state == Residency::kSpilling && copy.readers == 1 &&
         copy.leases == 0 && !copy.pinned;
}

// One group, with its copies and what backs them.
struct GroupEntry {
  std::shared_ptr<const Group> group;
  std::map<Place, Copy> copies;
  bool in_files = false;           // Can be read from the model's files.
  std::optional<SpillId> spilled;  // Can be read from the spill store.
  std::vector<SpillId> damaged;    // Put aside by the store; take its room.
  absl::Status lost;               // Not OK: no tier has the bytes any more.

  bool on_disk() const { return in_files || spilled.has_value(); }
  // Whether the host has the only copy of a published group's bytes.
  bool unsaved() const;
};

struct ModelEntry {
  ModelPtr model;
  std::deque<GroupEntry> groups;  // References survive publishing.
};

// Bytes of a tier that a group takes; an image of no bytes takes a page.
uint64_t SpaceOf(const Group& group);

// Threads: one at a time. References stay valid until their model is removed.
class CopyTable {
 public:
  ModelEntry& AddModel(ModelPtr model);
  void RemoveModel(ModelId id);
  ModelEntry* FindModel(ModelId id);
  const ModelEntry* FindModel(ModelId id) const;
  GroupEntry* FindGroup(GroupKey key);
  const GroupEntry* FindGroup(GroupKey key) const;
  // Of a tier, that a copy of the group takes. The group must exist.
  uint64_t SpaceOf(GroupKey key) const;
  // The copy, made absent if there is none. The group must exist.
  Copy& At(const CopyRef& ref);
  // nullptr: there is none.
  Copy* Find(const CopyRef& ref);

  // Changes the state as NextState says; an illegal event is our bug.
  void Apply(Copy& copy, ResidencyEvent event);

  OwnerId NewOwner(const CopyRef& ref);
  // A holder that is no copy yet (an image being received).
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
  uint64_t last_owner_ = 0;
};

}  // namespace hoistd

#endif  // HOIST_DAEMON_CORE_COPY_TABLE_H_
