// How a group's runs become reads: few, long, in file order.
#ifndef HOIST_DAEMON_MOVER_READ_PLAN_H_
#define HOIST_DAEMON_MOVER_READ_PLAN_H_

#include <cstddef>
#include <cstdint>
#include <span>
#include <vector>

#include "daemon/model/tensor.h"
#include "daemon/terms/io_engine.h"

namespace hoistd {

// One contiguous range of the file with this index.
struct PlannedRead {
  uint32_t file = 0;
  uint64_t offset = 0;
  std::vector<Scatter> into;
};

// Joins runs that are neighbours in a file, reading over gaps that are cheaper
// to read than to skip. `image` is the group's memory.
std::vector<PlannedRead> PlanReads(const Group& group,
                                   std::span<std::byte> image);

// Zeroes what no run fills: alignment gaps and the padding at the end. The
// memory may hold another model's bytes.
void ZeroPadding(const Group& group, std::span<std::byte> image);

}  // namespace hoistd

#endif  // HOIST_DAEMON_MOVER_READ_PLAN_H_
