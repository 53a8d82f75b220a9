// One device's pool: slabs, and which image lies where in them.
//
// The device's span of offsets is cut into arenas. An arena holds the slabs of
// one zone: images with the same readers and the same backing, so that mapping
// a slab never shows a worker what it may not read. Where slabs lie side by
// side in every process's address space (memfd, VMM) images may cross them;
// legacy IPC slabs are islands, and an image larger than a slab gets one of its
// own size.
#ifndef HOIST_DAEMON_CORE_DEVICE_SPACE_H_
#define HOIST_DAEMON_CORE_DEVICE_SPACE_H_

#include <compare>
#include <cstdint>
#include <map>
#include <optional>
#include <vector>

#include "absl/functional/function_ref.h"
#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "daemon/core/device.h"
#include "daemon/core/extent_map.h"
#include "daemon/core/ids.h"

namespace hoistd {

// Images that may share a slab. `readers` stands for who may read them.
struct Zone {
  uint64_t readers = 0;
  Backing backing = Backing::kMemfd;

  auto operator<=>(const Zone&) const = default;
};

struct DeviceSpaceOptions {
  uint64_t capacity_bytes = 0;  // In slabs, at most; rounded down to granules.
  uint64_t slab_bytes = 0;      // Usual size; rounded up to the granularity.
};

// Threads:  one at a time.
// Owns:     the slabs, through `device`, which must outlive this object.
// Bounds:   kMaxZones zones.
class DeviceSpace {
 public:
  static constexpr uint64_t kMaxZones = 8;
  // The span a device needs so that every zone could take the whole pool.
  static uint64_t SpanFor(uint64_t capacity_bytes, uint64_t granularity);

  DeviceSpace(const DeviceSpaceOptions& options, Device& device);
  ~DeviceSpace();
  DeviceSpace(const DeviceSpace&) = delete;
  DeviceSpace& operator=(const DeviceSpace&) = delete;

  // Space in free memory, new slabs included. ResourceExhausted: there is none
  // without evicting. Other codes: the device refused a slab.
  absl::StatusOr<uint64_t> Allocate(Zone zone, uint64_t bytes, OwnerId owner);
  // What to evict so that Allocate can succeed: in the zone itself or, if that
  // does not do, in others (or its own islands) whose slabs can then be given
  // back. `imported` tells
  // whether a live session has the slab open (its memory would stay taken).
  // nullopt: nothing would help now.
  std::optional<Hole> CheapestHole(
      Zone zone, uint64_t bytes, KeepValueFn value,
      absl::FunctionRef<bool(SlabId)> imported) const;
  // Gives back empty slabs at the ends of the other zones, and empty islands of
  // `zone`, until there is memory for `bytes` more, as far as that goes.
  absl::Status ReleaseSlabs(Zone zone, uint64_t bytes,
                            absl::FunctionRef<bool(SlabId)> imported);
  void Free(uint64_t offset);

  // Somebody else may have freed device memory: ask for slabs again.
  void RetrySlabs() { refused_ = false; }

  // The slabs that [offset, offset + bytes) lies in.
  std::vector<SlabSpec> SlabsOf(uint64_t offset, uint64_t bytes) const;

  uint64_t capacity() const { return capacity_; }
  uint64_t slab_bytes() const { return slab_bytes_; }
  uint64_t allocated() const { return allocated_; }  // In slabs.
  uint64_t used() const;
  uint64_t largest_free() const;  // In some slab, or in slabs to come.

 private:
  // Slabs side by side, in which an image may lie anywhere.
  struct Segment {
    uint64_t base = 0;
    ExtentMap map;
    std::vector<SlabSpec> slabs;
  };
  struct Arena {
    uint64_t base = 0;
    std::map<uint64_t, Segment> segments;  // By base.
  };

  static bool Contiguous(Backing backing) { return backing != Backing::kIpc; }
  uint64_t budget() const { return refused_ ? 0 : capacity_ - allocated_; }
  absl::StatusOr<Arena*> ArenaOf(Zone zone);
  absl::Status AddSlab(Arena& arena, Backing backing, uint64_t bytes);
  // What to evict so that slabs can be given back for a new one.
  std::optional<Hole> HoleElsewhere(
      Zone zone, uint64_t bytes, KeepValueFn value,
      absl::FunctionRef<bool(SlabId)> imported) const;
  Segment* SegmentAt(uint64_t offset);
  const Segment* SegmentAt(uint64_t offset) const;

  Device& device_;
  const uint64_t granularity_;
  const uint64_t capacity_;
  const uint64_t slab_bytes_;
  uint64_t allocated_ = 0;
  uint64_t last_slab_ = 0;
  bool refused_ = false;  // The device had no memory for the last slab.
  std::map<Zone, Arena> arenas_;
};

}  // namespace hoistd

#endif  // HOIST_DAEMON_CORE_DEVICE_SPACE_H_
