#include "daemon/mover/read_plan.h"

#include <algorithm>
#include <cstring>
#include <tuple>

namespace hoistd {
namespace {

// A gap below this is read over: one request's overhead is worth about as much.
constexpr uint64_t kReadOverBytes = 64 * 1024;

}  // namespace

std::vector<PlannedRead> PlanReads(const Group& group,
                                   std::span<std::byte> image) {
  std::vector<SourceRun> runs = group.runs;
  std::sort(runs.begin(), runs.end(),
            [](const SourceRun& a, const SourceRun& b) {
              return std::tie(a.file, a.file_offset) <
                     std::tie(b.file, b.file_offset);
            });
  std::vector<PlannedRead> reads;
  uint64_t end = 0;  // Of the last read, in its file.
  for (const SourceRun& run : runs) {
    if (run.bytes == 0) continue;
    const bool joins = !reads.empty() && reads.back().file == run.file &&
                       run.file_offset >= end &&
                       run.file_offset - end <= kReadOverBytes;
    if (!joins) {
      reads.push_back({run.file, run.file_offset, {}});
    } else if (run.file_offset > end) {
      reads.back().into.push_back({nullptr, run.file_offset - end});
    }
    reads.back().into.push_back({image.data() + run.image_offset, run.bytes});
    end = run.file_offset + run.bytes;
  }
  return reads;
}

void ZeroPadding(const Group& group, std::span<std::byte> image) {
  uint64_t end = 0;
  const auto zero_until = [&](uint64_t offset) {
    if (offset > end) std::memset(image.data() + end, 0, offset - end);
  };
  for (const SourceRun& run : group.runs) {  // In image order.
    zero_until(run.image_offset);
    end = std::max(end, run.image_offset + run.bytes);
  }
  zero_until(group.image_bytes);
}

}  // namespace hoistd
