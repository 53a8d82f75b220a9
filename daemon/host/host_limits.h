// How much memory this process may use, and how much of it the pool gets.
#ifndef HOIST_DAEMON_HOST_HOST_LIMITS_H_
#define HOIST_DAEMON_HOST_HOST_LIMITS_H_

#include <cstdint>
#include <optional>
#include <string>

#include "absl/status/statusor.h"

namespace hoistd {

// The least memory limit of this process's cgroup and those above it, version
// 2 or 1 (or both, on hybrid hosts). nullopt: there is none. `root` stands
// before /proc and /sys; it is "" but in tests.
std::optional<uint64_t> CgroupMemoryLimit(const std::string& root);

struct HostPoolSize {
  uint64_t bytes = 0;  // A multiple of 2 MiB.
  std::string note;    // What the operator should know; may be empty.
};

// The configured size, else half of the limit, else 4 GiB. Never from the
// machine's memory, most of which may be others'.
// InvalidArgument: more than the limit is asked for, or less than 2 MiB.
absl::StatusOr<HostPoolSize> ChooseHostPoolSize(
    std::optional<uint64_t> configured_bytes,
    std::optional<uint64_t> cgroup_limit_bytes);

// Of memory that devices read in place, beside the pool: the configured size,
// else as much as the pool has, but both together no more than three quarters
// of the limit. A multiple of 2 MiB; memory is taken only as it is needed.
// InvalidArgument: both together are more than the limit.
absl::StatusOr<uint64_t> ChooseInPlaceSize(
    std::optional<uint64_t> configured_bytes, uint64_t pool_bytes,
    std::optional<uint64_t> cgroup_limit_bytes);

}  // namespace hoistd

#endif  // HOIST_DAEMON_HOST_HOST_LIMITS_H_
