// The memory available to this process, and the pool's part of it.
#ifndef HOIST_DAEMON_HOST_HOST_LIMITS_H_
#define HOIST_DAEMON_HOST_HOST_LIMITS_H_

#include <cstdint>
#include <optional>
#include <string>

#include "absl/status/statusor.h"

namespace hoistd {

// The least memory limit (memory.max, memory.high) of this process's cgroup and
// its parents, in version 2 or 1 (or both, on hybrid hosts). nullopt: no limit.
// `root` is a prefix of /proc and /sys; "" except in tests.
std::optional<uint64_t> CgroupMemoryLimit(const std::string& root);

// Memory that this process could still take: the machine's, and below each of
// those limits what neither processes nor an active page cache use. nullopt: it
// cannot be read. `root` as above.
std::optional<uint64_t> AvailableMemory(const std::string& root);

// Memory available to this process together with all others.
struct HostMemory {
  std::optional<uint64_t> cgroup_limit;  // As CgroupMemoryLimit.
  std::optional<uint64_t> machine;  // MemTotal; nullopt: it cannot be read.

  // The least known limit. nullopt: none is known.
  std::optional<uint64_t> Limit() const;
  bool cgroup_is_less() const;
};
HostMemory ReadHostMemory(const std::string& root);

struct HostPoolSize {
  uint64_t bytes = 0;  // A multiple of 2 MiB.
  std::string note;    // For the operator; may be empty.
};

// The configured size. Else a quarter of the machine's memory, the rest of
// which is for others, and at most half of the cgroup's limit. Free memory does
// not count, since the pool itself reduces it. InvalidArgument: above the
// available memory, or below 2 MiB.
absl::StatusOr<HostPoolSize> ChooseHostPoolSize(
    std::optional<uint64_t> configured_bytes, const HostMemory& memory);

// The size of in-place memory, beside the pool. The configured size, else the
// pool's; both together at most three quarters of the available memory. A
// multiple of 2 MiB; memory is allocated only as needed. InvalidArgument: both
// together exceed the available memory.
absl::StatusOr<uint64_t> ChooseInPlaceSize(
    std::optional<uint64_t> configured_bytes, uint64_t pool_bytes,
    const HostMemory& memory);

// The size of pageable memory, a multiple of 2 MiB. InvalidArgument: beside the
// pool it exceeds the available memory.
absl::StatusOr<uint64_t> ChoosePageableSize(uint64_t configured_bytes,
                                            uint64_t pool_bytes,
                                            const HostMemory& memory);

}  // namespace hoistd

#endif  // HOIST_DAEMON_HOST_HOST_LIMITS_H_
