// The imported slabs, and their places in the span.
#ifndef HOIST_CLIENT_SRC_DEVICE_SLAB_RANGES_H_
#define HOIST_CLIENT_SRC_DEVICE_SLAB_RANGES_H_

#include <cstdint>
#include <map>
#include <optional>
#include <unordered_map>

#include "client/src/device/device_map.h"
#include "hoist/shared/status.h"

namespace hoist {

struct SlabRange {
  uint64_t id = 0;
  uint64_t offset = 0;
  uint64_t bytes = 0;
  SlabBacking backing = SlabBacking::kMemfd;
  uint64_t address = 0;  // In this process.
  bool apart = false;
  cuda::Allocation allocation = 0;  // A GPU's separate slab; the address is 0.
};

// Threads:  none of its own; its owner locks.
class SlabRanges {
 public:
  explicit SlabRanges(uint64_t span_bytes) : span_bytes_(span_bytes) {}

  // InvalidArgument: empty, past the span, or over another slab.
  Status CheckFree(const SlabImport& slab) const;
  void Add(const SlabRange& range);
  // nullopt: no such slab.
  std::optional<SlabRange> Remove(uint64_t id);
  const SlabRange* Find(uint64_t id) const;
  const SlabRange* At(uint64_t offset) const;
  const std::map<uint64_t, SlabRange>& by_offset() const { return by_offset_; }

 private:
  const uint64_t span_bytes_;
  std::map<uint64_t, SlabRange> by_offset_;
  std::unordered_map<uint64_t, uint64_t> offset_of_;  // By id.
};

}  // namespace hoist

#endif  // HOIST_CLIENT_SRC_DEVICE_SLAB_RANGES_H_
