#include "daemon/mover/read_plan.h"

#include <algorithm>
#include <cstring>

namespace hoistd {
namespace {

// Smaller gaps are read over: a request's overhead costs about as much.
constexpr uint64_t kReadOverBytes = 64 * 1024;

}  // namespace

PlannedReads PlanReads(const Sheets& sheets, std::vector<SheetRead> parts,
                       std::span<std::byte> host) {
  std::ranges::sort(parts, {}, &SheetRead::from);
  PlannedReads reads;
  uint64_t end = 0;  // Of the last read, in its file.
  for (const auto& [from, host_offset, owner] : parts) {
    for (const Sheet::Run& run : RunsOf(sheets, from)) {
      if (run.bytes == 0) continue;
      std::vector<ReadRequest>& of_file = reads[from.file];
      const bool joins = !of_file.empty() && run.file_offset >= end &&
                         run.file_offset - end <= kReadOverBytes;
      if (!joins) {
        of_file.emplace_back().offset = run.file_offset;
      } else if (run.file_offset > end) {
        of_file.back().into.push_back({nullptr, run.file_offset - end});
      }
      const uint64_t at = host_offset + (run.offset - from.offset);
      const std::span<std::byte> to = host.subspan(at, run.bytes);
      of_file.back().into.push_back({to.data(), to.size()});
      end = run.file_offset + run.bytes;
    }
  }
  return reads;
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

}  // namespace hoistd
