// Turns parts of sheets into few, long reads in file order.
#ifndef HOIST_DAEMON_MOVER_READ_PLAN_H_
#define HOIST_DAEMON_MOVER_READ_PLAN_H_

#include <cstddef>
#include <cstdint>
#include <span>
#include <vector>

#include "daemon/core/transfer.h"
#include "daemon/model/sheet.h"
#include "daemon/types/io_engine.h"

namespace hoistd {

// Bytes of the file with this index, and their target memory.
struct FileRun {
  uint32_t file = 0;
  uint64_t offset = 0;
  std::span<std::byte> to;
};

// Bytes of files in these parts of their `sheets`; `host` is the pool.
std::vector<FileRun> FileRunsOf(const Sheets& sheets,
                                const std::vector<SheetRead>& parts,
                                std::span<std::byte> host);
// Zeroes bytes of the parts that come from no file: their memory may hold
// others' data. Touches the memory, so not for threads that others wait for.
void ZeroPadding(const Sheets& sheets, const std::vector<SheetRead>& parts,
                 std::span<std::byte> host);

// One range of the file with this index.
struct PlannedRead {
  uint32_t file = 0;
  uint64_t offset = 0;
  std::vector<Scatter> into;
};

// Joins neighbouring runs of a file, and reads over gaps that cost less than a
// new read. Runs of a file must not overlap.
std::vector<PlannedRead> PlanReads(std::vector<FileRun> runs);

}  // namespace hoistd

#endif  // HOIST_DAEMON_MOVER_READ_PLAN_H_
