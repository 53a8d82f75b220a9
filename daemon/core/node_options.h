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
  uint64_t slab_bytes = 0;
  std::vector<uint64_t> device_capacity_bytes;  // One a device.
  uint64_t spill_capacity_bytes = 0;            // 0: nothing is spilled.
  Readers default_readers = Readers::kOwner;
  // Several users may have one piece of device memory open: who has it cannot
  // write to it, or the operator says that they trust each other.
  bool users_share_devices = true;
  QuotaOptions quota;
  // That slabs of one image each may keep, of the process's.
  uint64_t apart_descriptors = std::numeric_limits<uint64_t>::max();
  // An arena may push out weights that lie in place and nobody uses; else it
  // takes what is free.
  bool arenas_evict = false;
  bool keeps = false;  // Somebody takes TakeKept.
  // What is published is spilled soon, and stays; else only when it must leave.
  bool saves_at_once = false;
  // Rough rates, to weigh one copy against another; they need not be exact.
  double host_bytes_per_second = 50e9;
  double disk_bytes_per_second = 3e9;
};

}  // namespace hoistd

#endif  // HOIST_DAEMON_CORE_NODE_OPTIONS_H_
