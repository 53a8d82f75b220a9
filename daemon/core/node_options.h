#ifndef HOIST_DAEMON_CORE_NODE_OPTIONS_H_
#define HOIST_DAEMON_CORE_NODE_OPTIONS_H_

#include <cstdint>
#include <limits>
#include <vector>

#include "daemon/core/quota.h"
#include "daemon/core/requests.h"

namespace hoistd {

struct NodeOptions {
  uint64_t host_capacity_bytes = 0;  // When the pool is whole.
  uint64_t pageable_bytes = 0;       // Host memory beyond the pool; 0: none.
  uint64_t slab_bytes = 0;
  std::vector<uint64_t> device_capacity_bytes;  // One a device.
  uint64_t spill_capacity_bytes = 0;            // 0: nothing is spilled.
  Readers default_readers = Readers::kOwner;
  // Several users may have one piece of device memory open: it is not writable
  // for workers, or the operator declares that users trust each other.
  bool users_share_devices = true;
  QuotaOptions quota;
  // Of the process, for slabs that hold one image each.
  uint64_t apart_descriptors = std::numeric_limits<uint64_t>::max();
  // An arena may evict idle weights in place; else it takes free memory only.
  bool arenas_evict = false;
  bool keeps = false;  // TakePersisted has a caller.
  // Spills published groups soon and keeps the copy; else only on eviction.
  bool saves_at_once = false;
  // Rough rates to compare copies; they need not be exact.
  double host_bytes_per_second = 50e9;
  double pageable_bytes_per_second = 8e9;
  double disk_bytes_per_second = 3e9;
};

}  // namespace hoistd

#endif  // HOIST_DAEMON_CORE_NODE_OPTIONS_H_
