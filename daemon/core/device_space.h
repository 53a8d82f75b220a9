// One device's pool: slabs, and which image lies where in them.
//
// It makes none: it says which are to be made and destroyed (TakeWork), and is
// told what became of it. A slab that is to be made is *coming*: its bytes and
// its addresses are taken, and nothing lies in it yet.
//
// A slab holds images of one zone: those with the same readers and the same
// backing, so that mapping a slab never shows a worker what it may not read.
// Images that are to be mapped each by itself lie apart, each in a slab of its
// own (ApartSlabs). Other slabs side by side are a segment. Where they are so
// in every process's address space (memfd, VMM) images may cross them; legacy
// IPC slabs are islands, each a segment, and an image larger than a slab gets
// one of its own size.
//
// A zone's slabs grow with it: each new one is as large as all before, up to
// the usual size. So who holds little takes little, and large models lie in few
// slabs. A segment grows into the addresses behind it, which are anybody's: the
// first zones lie far apart, later ones between them.
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
#include "daemon/core/zone.h"
#include "daemon/terms/device.h"
#include "daemon/terms/ids.h"

namespace hoistd {

struct DeviceSpaceOptions {
  DeviceIndex device;
  uint64_t granularity = 0;     // Of the device's slabs.
  uint64_t capacity_bytes = 0;  // In slabs, at most; rounded down to granules.
  // Of the largest slabs, but for islands; rounded up to the granularity.
  uint64_t slab_bytes = 0;
  // Of all devices' slabs apart. nullptr: nobody counts.
  ApartDescriptors* apart_descriptors = nullptr;
};

// Who has a slab open, and so keeps its memory when it is destroyed.
enum class Opened {
  kNobody,
  kIdle,  // By those alone who close it when they are asked.
  kKept,
};
using OpenedFn = absl::FunctionRef<Opened(SlabId)>;

// Space that is wanted.
struct Want {
  Zone zone;
  uint64_t bytes = 0;
  // So much of other zones', in slabs or not, is not for this.
  std::map<Zone, uint64_t> promised = {};
};

struct ZonedSlab {
  Zone zone;
  SlabSpec slab;
  std::optional<OwnerId> owner;  // Of one apart that somebody waits for.
};

// Slabs that can be given back once `victims` have left and `idle` are closed.
struct Room {
  std::vector<OwnerId> victims;
  std::vector<SlabId> idle;
  uint64_t bytes = 0;                     // Of theirs, and of what no slab has.
  std::map<Zone, uint64_t> by_zone = {};  // Of theirs.
  bool enough = false;                    // For what was wanted.
};

// What is to be done to a device. Pieces of work of one device are done one
// after another, in the order in which they are taken: what is destroyed first
// gives its memory and its addresses to what is made next.
struct SlabWork {
  // kZero: what a worker wrote there is not for whoever has it next.
  enum class Kind { kMake, kDestroy, kZero };

  Kind kind = Kind::kMake;
  DeviceIndex device;
  SlabSpec slab;
};

// Threads:  one at a time.
// Bounds:   as many slabs as the pool has granules.
class DeviceSpace {
 public:
  // The addresses a device needs: a few times the pool, so that zones do not
  // stand in each other's way.
  static uint64_t SpanFor(uint64_t capacity_bytes, uint64_t granularity);

  explicit DeviceSpace(const DeviceSpaceOptions& options);
  DeviceSpace(const DeviceSpace&) = delete;
  DeviceSpace& operator=(const DeviceSpace&) = delete;

  // Space in free memory. Unavailable: slabs that would do are coming, for this
  // want or for another of its zone; ask again when one was made. Nothing is to
  // be evicted for it meanwhile. ResourceExhausted: there is none without
  // evicting. What is to lie apart gets its slab at once, which may be coming.
  absl::StatusOr<uint64_t> Allocate(const Want& want, OwnerId owner);
  // A free slab apart of exactly these bytes. nullopt: there is none.
  std::optional<uint64_t> TakeFree(const Want& want, OwnerId owner) {
    const ApartSlabs::Slab* slab =
        apart_.Take(want.zone, InGranules(want.bytes), owner);
    return slab == nullptr ? std::nullopt
                           : std::optional<uint64_t>(slab->spec.offset);
  }
  // Whether what lies there is a slab apart that is not made or zeroed yet.
  bool IsComing(uint64_t offset) const;
  // Whether what lies there is apart.
  bool IsApart(uint64_t offset) const { return apart_.Holds(offset); }
  // What is to be made and destroyed, each once.
  std::vector<SlabWork> TakeWork() { return std::exchange(work_, {}); }
  // The oldest of its segment's coming slabs is there, to be opened by this; or
  // it cannot be made: then until RetrySlabs no more are asked for than there
  // are, so that those who wait do not ask over and over; who waited for one
  // apart has no space any more.
  ZonedSlab SlabMade(SlabId id, const absl::StatusOr<SlabShare>& made);
  // A slab apart was zeroed, or could not be, and was destroyed. nullopt: it
  // was given back meanwhile.
  std::optional<ZonedSlab> SlabZeroed(SlabId id, const absl::Status& zeroed);
  // A slab that was made before this object was, in the order of offsets.
  // InvalidArgument: it cannot lie there, or is more than there is room for.
  absl::Status Restore(const SlabSpec& slab, Zone zone, const SlabShare& share);
  // An image that lies in restored slabs of its zone. InvalidArgument: it
  // cannot.
  absl::Status RestoreAt(uint64_t offset, uint64_t bytes, Zone zone,
                         OwnerId owner);
  void SkipIds(uint64_t last) { last_slab_ = std::max(last_slab_, last); }
  // What to evict in the zone itself so that Allocate can succeed. nullopt:
  // nothing there would help now.
  std::optional<Hole> CheapestHole(const Want& want, KeepValueFn value) const;
  // What would let ReleaseSlabs have memory for all of `want`. With `own`,
  // slabs of the zone itself count too; with `idle`, those that could be closed
  // first.
  Room RoomElsewhere(const Want& want, bool own, bool idle, KeepValueFn value,
                     OpenedFn opened) const;
  // By zone, slabs that cannot be given back; with `idle`, those that would
  // have to be closed first are none of them.
  std::map<Zone, uint64_t> StuckBytes(bool idle, KeepValueFn value,
                                      OpenedFn opened) const;
  // Gives back empty slabs at the ends of segments that nobody has open, the
  // zone's own last, until there is memory for `want`, as far as that goes.
  void ReleaseSlabs(const Want& want, OpenedFn opened);
  // Where descriptors are what is missing: whether one more slab apart may be
  // made; gives back free ones that nobody has open until it may; who could
  // leave such slabs, least worth first; and which could be closed.
  absl::Status MayAddApart(Backing backing) const {
    return apart_.MayAdd(backing);
  }
  void ReleaseApart(Backing backing, OpenedFn opened);
  std::vector<OwnerId> MovableApart(KeepValueFn value, OpenedFn opened) const;
  std::vector<SlabId> IdleApart(KeepValueFn value, OpenedFn opened) const;
  // For who lies apart and had nothing written there yet; or not apart.
  void Free(uint64_t offset);
  // The same of one apart whose owner changes its mind; a slab that nobody was
  // asked to make yet is not made.
  void GiveUp(uint64_t offset);
  // A worker may have written to this slab: it is zeroed before anybody has it.
  void FreeToZero(uint64_t offset);
  // The same of all restored ones that nobody has.
  void ZeroFree();
  // Gives back free writable slabs until there is memory for `want`, if there
  // can be: nobody misses them.
  void ReleaseWritable(const Want& want);
  uint64_t free_writable() const { return apart_.free_writable(); }

  // Somebody else may have freed device memory: ask for slabs again.
  void RetrySlabs();

  // The slabs that [offset, offset + bytes) lies in. They have been made.
  std::vector<SlabSpec> SlabsOf(uint64_t offset, uint64_t bytes) const;
  // Of one of those.
  const SlabShare& ShareOf(SlabId id) const { return shares_.at(id); }
  // All of those.
  std::vector<ZonedSlab> AllSlabs() const;

  uint64_t capacity() const { return capacity_; }
  uint64_t slab_bytes() const { return slab_bytes_; }
  // In slabs, coming ones too.
  uint64_t allocated() const { return allocated_; }
  uint64_t allocated(Zone zone) const;
  const std::map<Zone, uint64_t>& allocated_by_zone() const { return by_zone_; }
  uint64_t used() const;
  uint64_t coming() const { return coming_; }  // Bytes of `allocated`.
  uint64_t largest_free() const;  // In some slab, or in slabs to come.
  // That segments lie apart, and the totals are theirs; what is not so is our
  // bug. For tests: looks at everything.
  void Check() const;

 private:
  // Slabs side by side, in which an image may lie anywhere.
  struct Segment {
    Zone zone;
    ExtentMap map;  // Of what was made.
    std::vector<SlabSpec> slabs;
    std::deque<SlabSpec> coming;  // Behind those.
    uint64_t coming_bytes = 0;

    uint64_t bytes() const { return map.bytes() + coming_bytes; }
    // At its end, when all has come.
    uint64_t trailing_free() const {
      return map.trailing_free() + coming_bytes;
    }
  };
  using Segments = std::map<uint64_t, Segment>;  // By where they begin.
  // Where slabs for an image can go: at the end of the segment there, or in a
  // new one.
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
  // Where segments may lie; behind that lies what is apart.
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
  // Whether a slab apart could be given back, but for its image.
  static bool CanClose(const ApartSlabs::Slab& slab, bool idle,
                       OpenedFn opened);
  // With what the room gives, or without.
  bool IsEnough(const Want& want, const Room& room) const;
  // Whether any of a slab is for `want`, or all of it is promised to its zone.
  bool Gains(const Want& want, Zone zone, uint64_t bytes,
             const Room& room) const;
  uint64_t Reserved(const Want& want, const Room& room) const;
  void AddRoomApart(const Want& want, bool mine, bool idle, KeepValueFn value,
                    OpenedFn opened, Room& room) const;
  void GiveBackApart(const Want& want, bool mine, OpenedFn opened);
  // Of what no slab has yet.
  uint64_t Budget() const;
  // Of that, what is for `want`.
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
  // For all that can be had where nothing is wanted.
  void AddRoom(const Segment& segment, const Want* want, bool idle,
               KeepValueFn value, OpenedFn opened, Room& room) const;
  const Segment* SegmentAt(uint64_t offset, uint64_t* base) const;

  const DeviceIndex device_;
  const uint64_t granularity_;
  const uint64_t capacity_;
  const uint64_t slab_bytes_;
  uint64_t allocated_ = 0;
  std::map<Zone, uint64_t> by_zone_;  // Of `allocated_`.
  uint64_t last_slab_ = 0;
  uint64_t coming_ = 0;
  // Of `capacity_`, what the device seems to have memory for, and why that is
  // less.
  uint64_t usable_;
  absl::Status refused_;
  Segments segments_;
  ApartSlabs apart_;
  std::map<SlabId, SlabShare> shares_;  // Of slabs that were made.
  std::vector<SlabWork> work_;          // To be taken.
};

}  // namespace hoistd

#endif  // HOIST_DAEMON_CORE_DEVICE_SPACE_H_
