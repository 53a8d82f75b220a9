// Slabs that hold one image or one piece of an arena each, in a device's
// addresses reserved for them.
//
// A worker may compose a tensor of images from several devices, and must map
// each image by itself. So no two share a slab. There may be tens of thousands
// of such slabs; only eviction scans them all.
#ifndef HOIST_DAEMON_CORE_APART_SLABS_H_
#define HOIST_DAEMON_CORE_APART_SLABS_H_

#include <cstdint>
#include <limits>
#include <map>
#include <optional>
#include <set>
#include <utility>

#include "absl/status/status.h"
#include "daemon/core/extent_map.h"
#include "daemon/core/zone.h"
#include "daemon/types/device.h"
#include "daemon/types/ids.h"

namespace hoistd {

// File descriptors of the process that slabs apart keep, over all devices.
struct ApartDescriptors {
  uint64_t most = std::numeric_limits<uint64_t>::max();
  uint64_t used = 0;
};

// A slab has its owner from the request on, while it is still coming: that
// waiter gets it, and nobody else is woken. A slab that a worker has written to
// is zeroed before its next owner gets it. It is free meanwhile; a new owner
// waits for the zeroing.
//
// Threads:  one at a time.
// Bounds:   as many slabs as DeviceSpace finds memory for, within
//           `descriptors`; restored slabs may exceed those.
class ApartSlabs {
 public:
  struct Slab {
    Zone zone;
    SlabSpec spec;
    std::optional<OwnerId> owner;  // nullopt: free.
    bool coming = true;
    bool zeroing = false;  // Its last owner's bytes are still there.

    bool ready() const { return !coming && !zeroing; }
  };

  // Uses [begin, begin + bytes) of the device's span. nullptr: descriptors are
  // not counted.
  explicit ApartSlabs(uint64_t begin, uint64_t bytes,
                      ApartDescriptors* descriptors = nullptr);

  // ResourceExhausted: one more slab would keep too many descriptors.
  absl::Status MayAdd(Backing backing) const;

  // A free slab of exactly these bytes, preferably a ready one. nullptr: none.
  const Slab* Take(const Zone& zone, uint64_t bytes, OwnerId owner);
  // A slab to be made. nullptr: the addresses are too fragmented.
  const Slab* Add(const Zone& zone, SlabId id, uint64_t bytes, OwnerId owner);
  // The slab was made.
  void Made(uint64_t offset);
  // A slab made before this object, in the order of offsets. InvalidArgument:
  // it cannot lie there.
  absl::Status Restore(const Zone& zone, const SlabSpec& spec);
  // The image of a restored slab. InvalidArgument: not free, or another size.
  absl::Status RestoreAt(const Zone& zone, uint64_t offset, uint64_t bytes,
                         OwnerId owner);
  // Its owner has left it and has not written to it.
  void Free(uint64_t offset);
  // Frees the slab and has it zeroed: its owner, or one of the last hoistd's,
  // may have written to it.
  void FreeToZero(uint64_t offset);
  void Zeroed(uint64_t offset);
  // Ends a slab that was free and made, or could not be made.
  void Remove(uint64_t offset);

  bool Holds(uint64_t offset) const { return offset >= begin_; }
  // nullptr: none begins there.
  const Slab* At(uint64_t offset) const;
  // nullptr: the slab is none of these.
  const Slab* Find(SlabId id) const;
  const std::map<uint64_t, Slab>& all() const { return slabs_; }
  // Slabs that are made and have no owner; and the bytes of the writable ones.
  const std::set<uint64_t>& free() const { return free_; }
  uint64_t free_writable() const { return free_writable_; }
  uint64_t used() const { return used_; }
  // The slab of these bytes with the least valuable image. nullopt: none can
  // move.
  std::optional<Hole> Cheapest(const Zone& zone, uint64_t bytes,
                               KeepValueFn value) const;
  // Checks that the totals match the slabs; a mismatch is our bug. For tests.
  void Check() const;

 private:
  // Properties by which a free slab is found.
  struct Kind {
    Zone zone;
    uint64_t bytes = 0;
    bool zeroing = false;

    auto operator<=>(const Kind&) const = default;
  };
  static uint64_t DescriptorsOf(Backing backing);
  static Kind KindOf(const Slab& slab) {
    return {slab.zone, slab.spec.bytes, slab.zeroing};
  }
  Slab& Insert(const Zone& zone, const SlabSpec& spec);
  void SetFree(uint64_t offset, const Slab& slab);
  void UnsetFree(uint64_t offset, const Slab& slab);

  const uint64_t begin_;
  ApartDescriptors* const descriptors_;
  std::map<uint64_t, Slab> slabs_;      // By offset.
  std::map<SlabId, uint64_t> offsets_;  // Of slabs_.
  std::set<uint64_t> free_;
  std::map<Kind, std::set<uint64_t>> free_by_kind_;
  uint64_t free_writable_ = 0;  // Bytes.
  uint64_t used_ = 0;           // Bytes of slabs with owners.
  ExtentMap addresses_;         // From begin_ on.
};

}  // namespace hoistd

#endif  // HOIST_DAEMON_CORE_APART_SLABS_H_
