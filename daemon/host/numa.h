// Memory on hosts with more than one NUMA node.
#ifndef HOIST_DAEMON_HOST_NUMA_H_
#define HOIST_DAEMON_HOST_NUMA_H_

#include <cstddef>
#include <span>

#include "absl/status/status.h"

namespace hoistd {

// Interleaves pages not yet allocated over all NUMA nodes with memory. The pool
// serves all devices, and the channels of one node would be the bottleneck of
// several links. With one node: ok, no effect.
absl::Status SpreadOverNodes(std::span<std::byte> memory);

}  // namespace hoistd

#endif  // HOIST_DAEMON_HOST_NUMA_H_
