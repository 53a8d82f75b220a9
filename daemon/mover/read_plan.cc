#include "daemon/mover/read_plan.h"

#include <algorithm>
#include <cstring>
#include <tuple>

namespace hoistd {
namespace {

// Smaller gaps are read over: a request's overhead costs about as much.
constexpr uint64_t kReadOverBytes = 64 * 1024;

}  // namespace

std::vector<FileRun> FileRunsOf(const Sheets& sheets,
                                const std::vector<SheetRead>& parts,
                                std::span<std::byte> host) {
  std::vector<FileRun> runs;
  for (const auto& [from, host_offset, owner] : parts) {
    for (const Sheet::Run& run : RunsOf(sheets, from)) {
      const uint64_t at = host_offset + (run.offset - from.offset);
      runs.push_back({from.file, run.file_offset, host.subspan(at, run.bytes)});
    }
  }
  return runs;
}

void ZeroPadding(const Sheets& sheets, const std::vector<SheetRead>& parts,
                 std::span<std::byte> host) {
  for (const auto& [from, host_offset, owner] : parts) {
    std::byte* const memory = host.subspan(host_offset, from.bytes).data();
    uint64_t end = 0;
    const auto zero_until = [&](uint64_t at) {
      if (at > end) std::memset(memory + end, 0, at - end);
    };
    for (const Sheet::Run& run : RunsOf(sheets, from)) {
      zero_until(run.offset - from.offset);
      end = run.offset - from.offset + run.bytes;
    }
    zero_until(from.bytes);
  }
}

std::vector<PlannedRead> PlanReads(std::vector<FileRun> runs) {
  std::sort(runs.begin(), runs.end(), [](const FileRun& a, const FileRun& b) {
    return std::tie(a.file, a.offset) < std::tie(b.file, b.offset);
  });
  std::vector<PlannedRead> reads;
  uint64_t end = 0;  // Of the last read, in its file.
  for (const FileRun& run : runs) {
    if (run.to.empty()) continue;
    const bool joins = !reads.empty() && reads.back().file == run.file &&
                       run.offset >= end && run.offset - end <= kReadOverBytes;
    if (!joins) {
      reads.push_back({run.file, run.offset, {}});
    } else if (run.offset > end) {
      reads.back().into.push_back({nullptr, run.offset - end});
    }
    reads.back().into.push_back({run.to.data(), run.to.size()});
    end = run.offset + run.to.size();
  }
  return reads;
}

}  // namespace hoistd
