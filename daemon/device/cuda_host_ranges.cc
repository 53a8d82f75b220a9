#include "daemon/device/cuda_host_ranges.h"

#include <algorithm>
#include <iterator>

#include "absl/strings/str_cat.h"
#include "daemon/base/status.h"

namespace hoistd {

absl::Status CudaHostRanges::Register(std::span<std::byte> memory) {
  const auto start = reinterpret_cast<uintptr_t>(memory.data());
  {
    // Recorded before the driver's call. A copy that is cut at a future edge
    // still works; a copy across a real edge fails.
    const absl::MutexLock lock(&mu_);
    const auto [it, is_new] = ranges_.try_emplace(start, Range{});
    if (!is_new) {
      if (it->second.bytes != memory.size()) {
        return absl::AlreadyExistsError(absl::StrCat(
            "host memory that starts here is registered with another size, ",
            it->second.bytes, " bytes"));
      }
      ++it->second.holders;
      return absl::OkStatus();
    }
    it->second = {memory.size(), 1};
  }
  const absl::Status status = ToAbsl(driver_.Check(
      driver_.host_register(memory.data(), memory.size(),
                            hoist::cuda::kHostRegisterPortable |
                                hoist::cuda::kHostRegisterDeviceMap),
      absl::StrCat("register ", memory.size(), " bytes of host memory")));
  if (status.ok()) return status;
  const absl::MutexLock lock(&mu_);
  ranges_.erase(start);
  return status;
}

absl::Status CudaHostRanges::Unregister(std::span<std::byte> memory) {
  const auto start = reinterpret_cast<uintptr_t>(memory.data());
  {
    const absl::MutexLock lock(&mu_);
    const auto it = ranges_.find(start);
    if (it == ranges_.end() || it->second.bytes != memory.size()) {
      return absl::NotFoundError("this host memory is not registered");
    }
    if (--it->second.holders > 0) return absl::OkStatus();
    ranges_.erase(it);
  }
  return ToAbsl(driver_.Check(driver_.host_unregister(memory.data()),
                              "unregister host memory"));
}

uint64_t CudaHostRanges::Prefix(const std::byte* at, uint64_t bytes) const {
  const auto start = reinterpret_cast<uintptr_t>(at);
  const absl::MutexLock lock(&mu_);
  const auto next = ranges_.upper_bound(start);
  uint64_t prefix = bytes;
  if (next != ranges_.end()) prefix = std::min(prefix, next->first - start);
  if (next != ranges_.begin()) {
    const auto& [range_start, range] = *std::prev(next);
    const uintptr_t end = range_start + range.bytes;
    if (start < end) prefix = std::min(prefix, end - start);
  }
  return prefix;
}

}  // namespace hoistd
