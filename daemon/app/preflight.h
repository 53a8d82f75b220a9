// Checks that this machine meets a configuration's needs.
#ifndef HOIST_DAEMON_APP_PREFLIGHT_H_
#define HOIST_DAEMON_APP_PREFLIGHT_H_

#include <cstdint>
#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "daemon/config/config.h"
#include "daemon/host/host_limits.h"

namespace hoistd {

// Faults that prevent hoistd's start or work and show without serving: groups,
// folders, memory, devices. One line each, "FILE:LINE: KEY: fault; remedy".
// `file`: stands for FILE:LINE of unset keys.
std::vector<std::string> FindFaults(const Config& config,
                                    const ConfigPlaces& places,
                                    const std::string& file);

// Bytes of pageable host memory beside a pool of `pool_bytes`. InvalidArgument:
// more than there is, or without disk.spill_dir, which has its images, too.
absl::StatusOr<uint64_t> PageableSize(const Config& config, uint64_t pool_bytes,
                                      const HostMemory& memory);

// Bytes that disk.spill_dir may hold. The folder need not exist yet.
absl::StatusOr<uint64_t> SpillCapacity(const DiskConfig& config);

}  // namespace hoistd

#endif  // HOIST_DAEMON_APP_PREFLIGHT_H_
