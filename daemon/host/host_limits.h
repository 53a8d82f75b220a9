// How much memory this process may use, and how much of it the pool gets.
#ifndef HOIST_DAEMON_HOST_HOST_LIMITS_H_
#define HOIST_DAEMON_HOST_HOST_LIMITS_H_

#include <cstdint>
#include <optional>
#include <string>

#include "absl/status/statusor.h"

namespace hoistd {

// The least memory limit (memory.max, memory.high) of this process's cgroup and
// those above it, version 2 or 1 (or both, on hybrid hosts). nullopt: there is
// none. `root` stands before /proc and /sys; it is "" but in tests.
std::optional<uint64_t> CgroupMemoryLimit(const std::string& root);

// What there is for this process and all others.
struct HostMemory {
  std::optional<uint64_t> cgroup_limit;  // As CgroupMemoryLimit.
  std::optional<uint64_t> machine;  // MemTotal; nullopt: it cannot be read.

  // The least of what is known. nullopt: nothing is.
  std::optional<uint64_t> Limit() const;
  bool cgroup_is_less() const;
};
HostMemory ReadHostMemory(const std::string& root);

struct HostPoolSize {
  uint64_t bytes = 0;  // A multiple of 2 MiB.
  std::string note;    // What the operator should know; may be empty.
};

// The configured size. Else a quarter of the machine's memory, the rest of
// which is others', and no more than half of what the cgroup allows. Not of
// what is free, which the pool itself makes less. InvalidArgument: more than
// there is, or less than 2 MiB.
absl::StatusOr<HostPoolSize> ChooseHostPoolSize(
    std::optional<uint64_t> configured_bytes, const HostMemory& memory);

// Of memory that devices read in place, beside the pool: the configured size,
// else as much as the pool has, but both together no more than three quarters
// of what there is. A multiple of 2 MiB; memory is taken only as it is needed.
// InvalidArgument: both together are more than there is.
absl::StatusOr<uint64_t> ChooseInPlaceSize(
    std::optional<uint64_t> configured_bytes, uint64_t pool_bytes,
    const HostMemory& memory);

}  // namespace hoistd

#endif  // HOIST_DAEMON_HOST_HOST_LIMITS_H_
