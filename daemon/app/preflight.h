// What a configuration counts on of this machine.
#ifndef HOIST_DAEMON_APP_PREFLIGHT_H_
#define HOIST_DAEMON_APP_PREFLIGHT_H_

#include <cstdint>
#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "daemon/config/config.h"

namespace hoistd {

// All that would keep hoistd from starting with it, or from what it is to do,
// and can be seen without serving: groups, folders, memory, devices. A line
// each, "FILE:LINE: KEY: what is wrong; the remedy". `file`: where what is
// nowhere set belongs.
std::vector<std::string> FindFaults(const Config& config,
                                    const ConfigPlaces& places,
                                    const std::string& file);

// Of disk.spill_dir, which need not be there yet; what it may hold.
absl::StatusOr<uint64_t> SpillCapacity(const DiskConfig& config);

}  // namespace hoistd

#endif  // HOIST_DAEMON_APP_PREFLIGHT_H_
