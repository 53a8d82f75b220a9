// Memory on hosts with more than one NUMA node.
#ifndef HOIST_DAEMON_HOST_NUMA_H_
#define HOIST_DAEMON_HOST_NUMA_H_

#include <cstddef>
#include <span>
#include <string>
#include <vector>

#include "absl/status/status.h"

namespace hoistd {

// "0-1,3" is 0, 1 and 3; empty where it is not such a list.
std::vector<int> ParseNodeList(const std::string& text);

// Spreads pages that are yet to come over all nodes that have memory, page by
// page: the pool serves every device, and one node's channels alone would be
// the bottleneck of several links. Ok and nothing done where there is one node.
absl::Status SpreadOverNodes(std::span<std::byte> memory);

}  // namespace hoistd

#endif  // HOIST_DAEMON_HOST_NUMA_H_
