#include "daemon/model/sheet.h"

#include <algorithm>

#include "hoist/shared/image_layout.h"

namespace hoistd {

std::optional<Sheet> LayOutSheet(std::span<const FileTensor> tensors,
                                 std::vector<uint64_t>& offsets) {
  std::vector<uint64_t> sizes;
  sizes.reserve(tensors.size());
  for (const FileTensor& tensor : tensors) sizes.push_back(tensor.bytes);
  std::optional<hoist::ImageLayout> layout = hoist::LayOutImage(sizes);
  if (!layout.has_value()) return std::nullopt;
  Sheet sheet;
  sheet.bytes = layout->image_bytes;
  for (size_t i = 0; i < tensors.size(); ++i) {
    if (tensors[i].bytes == 0) continue;
    const Sheet::Run run = {layout->offsets[i], tensors[i].file_offset,
                            tensors[i].bytes};
    if (!sheet.runs.empty()) {
      Sheet::Run& last = sheet.runs.back();
      if (last.offset + last.bytes == run.offset &&
          last.file_offset + last.bytes == run.file_offset) {
        last.bytes += run.bytes;
        continue;
      }
    }
    sheet.runs.push_back(run);
  }
  sheet.runs.shrink_to_fit();
  offsets = std::move(layout->offsets);
  return sheet;
}

std::vector<Sheet::Run> RunsOf(const Sheets& sheets, const SheetRange& range) {
  const Sheet& sheet = *sheets[range.file];
  auto run = std::upper_bound(
      sheet.runs.begin(), sheet.runs.end(), range.offset,
      [](uint64_t at, const Sheet::Run& r) { return at < r.offset + r.bytes; });
  std::vector<Sheet::Run> runs;
  for (; run != sheet.runs.end() && run->offset < range.end(); ++run) {
    const uint64_t from = std::max(range.offset, run->offset);
    const uint64_t to = std::min(range.end(), run->offset + run->bytes);
    runs.push_back({from, run->file_offset + (from - run->offset), to - from});
  }
  return runs;
}

}  // namespace hoistd
