// A file's tensors side by side, in file order, each aligned as in an image:
// the layout in which bytes of files lie on the host, whatever models and
// groups want them. A group whose tensors follow each other in the file is one
// range of its sheet.
#ifndef HOIST_DAEMON_MODEL_SHEET_H_
#define HOIST_DAEMON_MODEL_SHEET_H_

#include <cstdint>
#include <memory>
#include <optional>
#include <span>
#include <vector>

#include "daemon/model/file_header.h"
#include "daemon/types/ranges.h"

namespace hoistd {

struct Sheet {
  // A run of the file's bytes and its place in the sheet.
  struct Run {
    uint64_t offset = 0;
    uint64_t file_offset = 0;
    uint64_t bytes = 0;
  };
  // Ascending in both. What lies between them in the sheet is padding, and is
  // zero.
  std::vector<Run> runs;
  uint64_t bytes = 0;  // A multiple of 4 KiB.
};

// The sheet of a file's `tensors`, which are in file order, and in `offsets`
// where each begins in it. nullopt: it would be larger than kMaxImageBytes.
std::optional<Sheet> LayOutSheet(std::span<const FileTensor> tensors,
                                 std::vector<uint64_t>& offsets);

using Sheets = std::vector<std::shared_ptr<const Sheet>>;  // By file.

// The file's bytes of the range, in order.
std::vector<Sheet::Run> RunsOf(const Sheets& sheets, const SheetRange& range);

}  // namespace hoistd

#endif  // HOIST_DAEMON_MODEL_SHEET_H_
