// Slabs of one image or one piece of an arena each, in the addresses of a
// device that are kept for them.
//
// A worker that composes a tensor of images, each of which it may have from
// another device, must be able to map each by itself: so none may share a slab.
// There may be ten thousands of them, and nothing looks at each but eviction.
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
#include "daemon/terms/device.h"
#include "daemon/terms/ids.h"

namespace hoistd {

// Descriptors of the process that slabs apart keep, of all devices together.
struct ApartDescriptors {
  uint64_t most = std::numeric_limits<uint64_t>::max();
  uint64_t used = 0;
};

// A slab has its owner from when it is asked for, while it is coming: who
// waits for it gets it, and nobody else is woken. One that a worker has written
// to is zeroed before it has another owner; it is free meanwhile, and who takes
// it waits for that.
//
// Threads:  one at a time.
// Bounds:   as many slabs as DeviceSpace finds memory for, and no more than
//           `descriptors` allow, but for what is restored.
class ApartSlabs {
 public:
  struct Slab {
    Zone zone;
    SlabSpec spec;
    std::optional<OwnerId> owner;  // nullopt: it is free.
    bool coming = true;
    bool zeroing = false;  // What its last owner wrote is still there.

    bool ready() const { return !coming && !zeroing; }
  };

  // Of the device's span, [begin, begin + bytes) is theirs. nullptr: nobody
  // counts descriptors.
  explicit ApartSlabs(uint64_t begin, uint64_t bytes,
                      ApartDescriptors* descriptors = nullptr);

  // ResourceExhausted: one more would keep too many descriptors.
  absl::Status MayAdd(Backing backing) const;

  // A free slab of exactly these bytes, one that is ready if there is any.
  // nullptr: there is none.
  const Slab* Take(const Zone& zone, uint64_t bytes, OwnerId owner);
  // One that is to be made. nullptr: the addresses are too scattered.
  const Slab* Add(const Zone& zone, SlabId id, uint64_t bytes, OwnerId owner);
  // It is there.
  void Made(uint64_t offset);
  // Made before this object was, in the order of offsets. InvalidArgument: it
  // cannot lie there.
  absl::Status Restore(const Zone& zone, const SlabSpec& spec);
  // A restored one's image. InvalidArgument: it is not free, or another size.
  absl::Status RestoreAt(const Zone& zone, uint64_t offset, uint64_t bytes,
                         OwnerId owner);
  // It has no owner any more, who has not written to it.
  void Free(uint64_t offset);
  // It is free, and is to be zeroed: an owner has left it, who may have written
  // to it, or one of the last hoistd's.
  void FreeToZero(uint64_t offset);
  void Zeroed(uint64_t offset);
  // It is no more; it was free and there, or could not be made.
  void Remove(uint64_t offset);

  bool Holds(uint64_t offset) const { return offset >= begin_; }
  // nullptr: none begins there.
  const Slab* At(uint64_t offset) const;
  // nullptr: it is none of these.
  const Slab* Find(SlabId id) const;
  const std::map<uint64_t, Slab>& all() const { return slabs_; }
  // Those that are there and have no owner, and of these the bytes of the
  // writable ones.
  const std::set<uint64_t>& free() const { return free_; }
  uint64_t free_writable() const { return free_writable_; }
  uint64_t used() const { return used_; }
  // The one of these bytes whose image is worth least. nullopt: none can move.
  std::optional<Hole> Cheapest(const Zone& zone, uint64_t bytes,
                               KeepValueFn value) const;
  // That the totals are the slabs'; what is not so is our bug. For tests.
  void Check() const;

 private:
  // The slab's, by which a free one is found.
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
