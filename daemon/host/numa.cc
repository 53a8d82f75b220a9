#include "daemon/host/numa.h"

#include <sys/syscall.h>
#include <unistd.h>

#include <array>
#include <cerrno>
#include <fstream>

#include "absl/strings/numbers.h"
#include "absl/strings/str_split.h"
#include "absl/strings/strip.h"
#include "daemon/base/status.h"

namespace hoistd {
namespace {

constexpr int kMaxNodes = 1024;  // The kernel's own limit.
constexpr int kInterleave = 3;   // MPOL_INTERLEAVE, linux/mempolicy.h.
constexpr int kBitsPerWord = 8 * sizeof(unsigned long);  // NOLINT: the ABI.

}  // namespace

std::vector<int> ParseNodeList(const std::string& text) {
  std::vector<int> nodes;
  for (const absl::string_view part :
       absl::StrSplit(absl::StripAsciiWhitespace(text), ',')) {
    const std::vector<absl::string_view> ends = absl::StrSplit(part, '-');
    int first = 0;
    int last = 0;
    if (ends.size() > 2 || !absl::SimpleAtoi(ends.front(), &first) ||
        !absl::SimpleAtoi(ends.back(), &last) || first < 0 || last < first ||
        last >= kMaxNodes) {
      return {};
    }
    for (int node = first; node <= last; ++node) nodes.push_back(node);
  }
  return nodes;
}

absl::Status SpreadOverNodes(std::span<std::byte> memory) {
  std::ifstream in("/sys/devices/system/node/has_memory");
  std::string text;
  if (!in || !std::getline(in, text)) return absl::OkStatus();
  const std::vector<int> nodes = ParseNodeList(text);
  if (nodes.size() < 2) return absl::OkStatus();
  std::array<unsigned long, kMaxNodes / kBitsPerWord> mask = {};  // NOLINT
  for (const int node : nodes) {
    mask[node / kBitsPerWord] |= 1ul << (node % kBitsPerWord);
  }
  if (syscall(SYS_mbind, memory.data(), memory.size(), kInterleave, mask.data(),
              kMaxNodes, 0) != 0) {
    return Annotate(ErrnoToStatus(errno, "mbind"),
                    "host pool: not spread over the NUMA nodes");
  }
  return absl::OkStatus();
}

}  // namespace hoistd
