// One device's pool: its slabs, and the images that lie in them.
//
// It makes no slabs itself: it lists those to make and destroy (TakeWork), and
// is told the outcome. A slab to be made is *coming*: its bytes and addresses
// are taken, and it is still empty.
//
// A slab holds images of one zone, that is, with the same readers and the same
// backing. So mapping a slab never shows a worker what it may not read. Images
// to be mapped singly lie apart, each in a slab of its own (ApartSlabs). Other
// adjacent slabs form a segment. If they are adjacent in every process (memfd,
// VMM), images may cross them. Legacy IPC slabs are islands, each a segment; an
// image larger than a slab gets a slab of its own size.
//
// Each new slab of a zone is as large as all before it, up to the usual size.
// So small users take little, and large models lie in few slabs. A segment
// grows into the unreserved addresses behind it: the first zones lie far apart,
// later ones between them.
#ifndef HOIST_DAEMON_CORE_DEVICE_SPACE_H_
#define HOIST_DAEMON_CORE_DEVICE_SPACE_H_

#include <algorithm>
#include <cstdint>
#include <deque>
#include <map>
#include <optional>
#include <utility>
#include <vector>

#include "absl/functional/function_ref.h"
#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "daemon/core/apart_slabs.h"
#include "daemon/core/extent_map.h"
#include "daemon/core/pool_bounds.h"
#include "daemon/core/zone.h"
#include "daemon/types/device.h"
#include "daemon/types/ids.h"

namespace hoistd {

struct DeviceSpaceOptions {
  DeviceIndex device;
  uint64_t granularity = 0;     // Of the device's slabs.
  uint64_t capacity_bytes = 0;  // In slabs, at most; rounded down to granules.
  // Of the largest slabs except islands; rounded up to the granularity.
  uint64_t slab_bytes = 0;
  // Over all devices' slabs apart. nullptr: not counted.
  ApartDescriptors* apart_descriptors = nullptr;
};

// Who has a slab open, which keeps its memory after its destruction.
enum class Opened {
  kNobody,
  kIdle,  // Only by workers that close it on request.
  kKept,
};
using OpenedFn = absl::FunctionRef<Opened(SlabId)>;

// A request for space.
struct Want {
  Zone zone;
  uint64_t bytes = 0;
  // Promised to other zones, in slabs or not; not available to this one.
  std::map<Zone, uint64_t> promised = {};
};

struct ZonedSlab {
  Zone zone;
  SlabSpec slab;
  std::optional<OwnerId> owner;  // Of a slab apart that somebody waits for.
};

// Slabs to give back once `victims` have left and `idle` are closed.
struct Room {
  std::vector<OwnerId> victims;
  std::vector<SlabId> idle;
  uint64_t bytes = 0;                     // In those slabs, and in no slab yet.
  std::map<Zone, uint64_t> by_zone = {};  // In those slabs.
  bool enough = false;                    // For the request.
};

// Work on a device's slabs. One device's work is done in sequence, in the order
// in which it is taken: destroyed slabs give memory and addresses to slabs made
// after them.
struct SlabWork {
  // kZero: hides a worker's bytes from the next owner.
  enum class Kind { kMake, kDestroy, kZero };

  Kind kind = Kind::kMake;
  DeviceIndex device;
  SlabSpec slab;
};

// Threads:  one at a time.
// Bounds:   as many slabs as the pool has granules.
class DeviceSpace {
 public:
  // The address span for a device: a few times the pool, so that zones do not
  // block each other.
  static uint64_t SpanFor(uint64_t capacity_bytes, uint64_t granularity);

  explicit DeviceSpace(const DeviceSpaceOptions& options);
  DeviceSpace(const DeviceSpace&) = delete;
  DeviceSpace& operator=(const DeviceSpace&) = delete;

  // Allocates in free memory. Unavailable: enough slabs are coming, for this
  // request or another of its zone; evict nothing for it and retry when one was
  // made. ResourceExhausted: only eviction would help. An image apart gets its
  // slab at once, which may be coming.
  absl::StatusOr<uint64_t> Allocate(const Want& want, OwnerId owner);
  // A free slab apart of exactly these bytes. nullopt: none.
  std::optional<uint64_t> TakeFree(const Want& want, OwnerId owner) {
    const ApartSlabs::Slab* slab =
        apart_.Take(want.zone, InGranules(want.bytes), owner);
    return slab == nullptr ? std::nullopt
                           : std::optional<uint64_t>(slab->spec.offset);
  }
  // Whether a slab apart, not yet made or zeroed, lies there.
  bool IsComing(uint64_t offset) const;
  // Whether a slab apart lies there.
  bool IsApart(uint64_t offset) const { return apart_.Holds(offset); }
  // Slabs to make, destroy and zero, each once.
  std::vector<SlabWork> TakeWork() { return std::exchange(work_, {}); }
  // The oldest coming slab of its segment was made and is opened by `made`. An
  // error: it cannot be made. Then no more slabs than exist are requested until
  // RetrySlabs, so that waiters do not retry in a loop; the waiter for a slab
  // apart has lost its space.
  ZonedSlab SlabMade(SlabId id, const absl::StatusOr<SlabShare>& made);
  // A slab apart was zeroed; an error: it was destroyed. nullopt: it was given
  // back meanwhile.
  std::optional<ZonedSlab> SlabZeroed(SlabId id, const absl::Status& zeroed);
  // A slab made before this object, in the order of offsets. InvalidArgument:
  // it cannot lie there, or exceeds the room.
  absl::Status Restore(const SlabSpec& slab, Zone zone, const SlabShare& share);
  // An image in restored slabs of its zone. InvalidArgument: it cannot lie
  // there.
  absl::Status RestoreAt(uint64_t offset, uint64_t bytes, Zone zone,
                         OwnerId owner);
  void SkipIds(uint64_t last) { last_slab_ = std::max(last_slab_, last); }
  // Eviction victims in the zone itself that let Allocate succeed. nullopt:
  // none would help now.
  std::optional<Hole> CheapestHole(const Want& want, KeepValueFn value) const;
  // Room that lets ReleaseSlabs find memory for all of `want`. With `own`,
  // includes slabs of the zone itself; with `idle`, those to be closed first.
  Room RoomElsewhere(const Want& want, bool own, bool idle, KeepValueFn value,
                     OpenedFn opened) const;
  // Slabs that cannot be given back, by zone; with `idle`, without those that
  // must be closed first.
  std::map<Zone, uint64_t> StuckBytes(bool idle, KeepValueFn value,
                                      OpenedFn opened) const;
  // Gives back empty, unopened slabs at the ends of segments, the zone's own
  // last, until there is memory for `want` or no more such slab.
  void ReleaseSlabs(const Want& want, OpenedFn opened);
  // For a shortage of descriptors: whether one more slab apart may be made;
  // frees unopened free slabs until it may; images that could leave such slabs,
  // least valuable first; slabs that could be closed.
  absl::Status MayAddApart(Backing backing) const {
    return apart_.MayAdd(backing);
  }
  void ReleaseApart(Backing backing, OpenedFn opened);
  std::vector<OwnerId> MovableApart(KeepValueFn value, OpenedFn opened) const;
  std::vector<SlabId> IdleApart(KeepValueFn value, OpenedFn opened) const;
  // For an image apart that nothing was written to, or one not apart.
  void Free(uint64_t offset);
  // The same for an image apart whose owner gives up; a slab that nobody was
  // asked to make yet is not made.
  void GiveUp(uint64_t offset);
  // A worker may have written to this slab: zeroes it before its next use.
  void FreeToZero(uint64_t offset);
  // The same for all restored slabs without an owner.
  void ZeroFree();
  // Gives back free writable slabs, which nobody misses, until there is memory
  // for `want`; gives back none if all are not enough.
  void ReleaseWritable(const Want& want);
  uint64_t free_writable() const { return apart_.free_writable(); }

  // Others may have freed device memory: requests slabs again.
  void RetrySlabs() { bounds_.Retry(); }
  // Slabs may take so many bytes from now on. Gives nothing back: see `over`.
  void SetCapacity(PoolSize size) { bounds_.SetCapacity(size, granularity_); }

  // The slabs that [offset, offset + bytes) lies in. They have been made.
  std::vector<SlabSpec> SlabsOf(uint64_t offset, uint64_t bytes) const;
  // Of a slab that has been made.
  const SlabShare& ShareOf(SlabId id) const { return shares_.at(id); }
  // All slabs that have been made.
  std::vector<ZonedSlab> AllSlabs() const;

  uint64_t capacity() const { return bounds_.capacity(); }
  uint64_t over() const { return bounds_.over(); }
  const PoolBounds& bounds() const { return bounds_; }
  // In slabs, including coming ones.
  uint64_t allocated() const { return bounds_.taken(); }
  uint64_t allocated(Zone zone) const;
  const std::map<Zone, uint64_t>& allocated_by_zone() const { return by_zone_; }
  uint64_t used() const;
  uint64_t coming() const { return coming_; }  // Bytes of `allocated`.
  uint64_t largest_free() const;  // In some slab, or in slabs to come.
  // Checks that segments are disjoint and the totals theirs; a mismatch is our
  // bug. For tests: looks at everything.
  void Check() const;

 private:
  // Adjacent slabs, in which an image may lie anywhere.
  struct Segment {
    Zone zone;
    ExtentMap map;  // Of the slabs that are made.
    std::vector<SlabSpec> slabs;
    std::deque<SlabSpec> coming;  // Behind those.
    uint64_t coming_bytes = 0;

    uint64_t bytes() const { return map.bytes() + coming_bytes; }
    // At its end, once all slabs have come.
    uint64_t trailing_free() const {
      return map.trailing_free() + coming_bytes;
    }
  };
  using Segments = std::map<uint64_t, Segment>;  // By where they begin.
  // A place for new slabs: the end of this segment, or a new one.
  struct Place {
    uint64_t offset = 0;
    uint64_t missing = 0;  // Bytes of slabs that the image needs.
    uint64_t room = 0;     // Bytes of addresses for them.
    Segment* segment = nullptr;
  };

  static bool Contiguous(Backing backing) { return backing != Backing::kIpc; }
  uint64_t InGranules(uint64_t bytes) const {
    return (bytes + granularity_ - 1) / granularity_ * granularity_;
  }
  // Segments may lie below this; slabs apart lie above.
  uint64_t SegmentsEnd() const;
  static uint64_t EndOf(Segments::const_iterator segment) {
    return segment->first + segment->second.bytes();
  }
  absl::StatusOr<uint64_t> AllocateApart(const Want& want, OwnerId owner);
  void Destroy(const ApartSlabs::Slab& slab);
  absl::Status RestoreApart(const SlabSpec& slab, Zone zone,
                            const SlabShare& share);
  ZonedSlab ApartMade(const ApartSlabs::Slab& slab,
                      const absl::StatusOr<SlabShare>& made);
  absl::Status NoSpace(uint64_t bytes) const;
  // Whether a slab apart could be given back but for its image.
  static bool CanClose(const ApartSlabs::Slab& slab, bool idle,
                       OpenedFn opened);
  // With the memory that the room gives, or without.
  bool IsEnough(const Want& want, const Room& room) const;
  // Whether part of a slab is for `want`, or all of it is promised to its zone.
  bool Gains(const Want& want, Zone zone, uint64_t bytes,
             const Room& room) const;
  uint64_t Reserved(const Want& want, const Room& room) const;
  void AddRoomApart(const Want& want, bool mine, bool idle, KeepValueFn value,
                    OpenedFn opened, Room& room) const;
  void GiveBackApart(const Want& want, bool mine, OpenedFn opened);
  // The part of that for `want`.
  uint64_t BudgetFor(const Want& want) const;
  // Free addresses behind the segment.
  uint64_t RoomBehind(Segments::const_iterator segment) const;
  std::optional<uint64_t> InSlabs(const Want& want, OwnerId owner);
  bool IsComing(const Want& want) const;
  std::optional<Place> PlaceFor(const Want& want);
  std::optional<Place> NewPlace(Zone zone, uint64_t bytes) const;
  void AddSlab(Place& place, Zone zone, uint64_t bytes);
  void Count(Zone zone, uint64_t bytes);
  void Uncount(Zone zone, uint64_t bytes);
  void GiveBack(const Want& want, Segment& segment, OpenedFn opened);
  // nullptr for `want`: adds all that can be had.
  void AddRoom(const Segment& segment, const Want* want, bool idle,
               KeepValueFn value, OpenedFn opened, Room& room) const;
  const Segment* SegmentAt(uint64_t offset, uint64_t* base) const;

  const DeviceIndex device_;
  const uint64_t granularity_;
  const uint64_t slab_bytes_;
  PoolBounds bounds_;
  std::map<Zone, uint64_t> by_zone_;  // Of its taken bytes.
  uint64_t last_slab_ = 0;
  uint64_t coming_ = 0;
  Segments segments_;
  ApartSlabs apart_;
  std::map<SlabId, SlabShare> shares_;  // Of slabs that were made.
  std::vector<SlabWork> work_;          // To be taken.
};

}  // namespace hoistd

#endif  // HOIST_DAEMON_CORE_DEVICE_SPACE_H_
