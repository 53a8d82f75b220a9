// How parts of sheets become reads: few, long, in file order.
#ifndef HOIST_DAEMON_MOVER_READ_PLAN_H_
#define HOIST_DAEMON_MOVER_READ_PLAN_H_

#include <cstddef>
#include <cstdint>
#include <memory>
#include <span>
#include <vector>

#include "daemon/core/transfer.h"
#include "daemon/model/sheet.h"
#include "daemon/terms/io_engine.h"

namespace hoistd {

using Sheets = std::vector<std::shared_ptr<const Sheet>>;

// Bytes of the file with this index, and the memory that they go to.
struct FileRun {
  uint32_t file = 0;
  uint64_t offset = 0;
  std::span<std::byte> to;
};

// What of the files these parts of their `sheets` are made of; `host` is the
// pool.
std::vector<FileRun> FileRunsOf(const Sheets& sheets,
                                const std::vector<SheetRead>& parts,
                                std::span<std::byte> host);
// Zeroes what of the parts comes from no file: its memory may hold others'
// bytes. Touches the memory, so not on a thread that others wait for.
void ZeroPadding(const Sheets& sheets, const std::vector<SheetRead>& parts,
                 std::span<std::byte> host);

// One contiguous range of the file with this index.
struct PlannedRead {
  uint32_t file = 0;
  uint64_t offset = 0;
  std::vector<Scatter> into;
};

// Joins runs that are neighbours in a file, reading over gaps that are cheaper
// to read than to skip. No two runs of a file overlap.
std::vector<PlannedRead> PlanReads(std::vector<FileRun> runs);

}  // namespace hoistd

#endif  // HOIST_DAEMON_MOVER_READ_PLAN_H_
