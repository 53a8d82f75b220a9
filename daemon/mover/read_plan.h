// Turns parts of sheets into few, long reads in file order.
#ifndef HOIST_DAEMON_MOVER_READ_PLAN_H_
#define HOIST_DAEMON_MOVER_READ_PLAN_H_

#include <cstddef>
#include <cstdint>
#include <map>
#include <span>
#include <vector>

#include "daemon/core/transfer.h"
#include "daemon/model/sheet.h"
#include "daemon/types/io_engine.h"

namespace hoistd {

// By index of the file; the requests' own `file` is unset.
using PlannedReads = std::map<uint32_t, std::vector<ReadRequest>>;

// The files' bytes in these parts of their `sheets`, in file order; `host` is
// the pool. Joins neighbours, and reads over gaps that cost less than a new
// read. Parts must not overlap.
PlannedReads PlanReads(const Sheets& sheets, std::vector<SheetRead> parts,
                       std::span<std::byte> host);
// Zeroes bytes of the parts that come from no file: their memory may hold
// others' data. Touches the memory, so not for threads that others wait for.
void ZeroPadding(const Sheets& sheets, const std::vector<SheetRead>& parts,
                 std::span<std::byte> host);

}  // namespace hoistd

#endif  // HOIST_DAEMON_MOVER_READ_PLAN_H_
