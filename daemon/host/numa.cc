#include "daemon/host/numa.h"

#include <sys/syscall.h>
#include <unistd.h>

#include <array>
#include <cerrno>
#include <vector>

#include "daemon/base/machine_files.h"
#include "daemon/base/status.h"

namespace hoistd {
namespace {

constexpr int kInterleave = 3;  // MPOL_INTERLEAVE, linux/mempolicy.h.
constexpr int kBitsPerWord = 8 * sizeof(unsigned long);  // NOLINT: the ABI.

}  // namespace

absl::Status SpreadOverNodes(std::span<std::byte> memory) {
  const std::vector<int> nodes = MemoryNodes("");
  if (nodes.size() < 2) return absl::OkStatus();
  // NOLINTNEXTLINE: the ABI.
  std::array<unsigned long, kMaxMemoryNodes / kBitsPerWord> mask = {};
  for (const int node : nodes) {
    mask[node / kBitsPerWord] |= 1ul << (node % kBitsPerWord);
  }
  if (syscall(SYS_mbind, memory.data(), memory.size(), kInterleave, mask.data(),
              kMaxMemoryNodes, 0) != 0) {
    return Annotate(ErrnoToStatus(errno, "mbind"),
                    "host pool: not spread over the NUMA nodes");
  }
  return absl::OkStatus();
}

}  // namespace hoistd
