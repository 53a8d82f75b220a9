// The slabs of a device, and their places in its span.
#ifndef HOIST_DAEMON_DEVICE_SLAB_TABLE_H_
#define HOIST_DAEMON_DEVICE_SLAB_TABLE_H_

#include <cstdint>
#include <map>

#include "absl/container/flat_hash_map.h"
#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "daemon/types/device.h"

namespace hoistd {

// The bookkeeping of all kinds of devices: places, totals, and checks of a
// caller's arguments.
//
// Threads:  none of its own; its owner locks.
class SlabTable {
 public:
  SlabTable(uint64_t granularity, uint64_t span_bytes)
      : granularity_(granularity), span_bytes_(span_bytes) {}

  // InvalidArgument: the id or the place is taken, the place is outside the
  // span, or not a multiple of the granularity.
  absl::Status CheckNew(const SlabSpec& spec) const;
  // CheckNew(spec) was ok.
  void Add(const SlabSpec& spec);
  // NotFound.
  absl::StatusOr<SlabSpec> Find(SlabId id) const;
  void Remove(SlabId id);

  // InvalidArgument: some byte of the range is in no slab, or the range spans
  // slabs of which one is not side by side with its neighbour (kIpc).
  absl::Status CheckRange(uint64_t offset, uint64_t bytes) const;
  // The slab that `offset` lies in; CheckRange was ok for it.
  const SlabSpec& At(uint64_t offset) const;

  uint64_t total_bytes() const { return total_bytes_; }
  const std::map<uint64_t, SlabSpec>& by_offset() const { return by_offset_; }

 private:
  const uint64_t granularity_;
  const uint64_t span_bytes_;
  uint64_t total_bytes_ = 0;
  std::map<uint64_t, SlabSpec> by_offset_;
  absl::flat_hash_map<SlabId, uint64_t> offset_of_;
};

}  // namespace hoistd

#endif  // HOIST_DAEMON_DEVICE_SLAB_TABLE_H_
