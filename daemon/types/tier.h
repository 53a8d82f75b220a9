#ifndef HOIST_DAEMON_TYPES_TIER_H_
#define HOIST_DAEMON_TYPES_TIER_H_

#include <compare>
#include <string>

#include "daemon/types/ids.h"

namespace hoistd {

// kPageable: host memory that is not pinned, behind kHost.
enum class Tier { kDevice, kHost, kPageable, kDisk };

// A tier and, for the device tier, the device.
struct TierAt {
  Tier tier = Tier::kHost;
  DeviceIndex device;  // 0 unless kDevice.

  auto operator<=>(const TierAt&) const = default;
};

inline TierAt OnDevice(DeviceIndex device) { return {Tier::kDevice, device}; }
inline TierAt OnHost() { return {Tier::kHost, DeviceIndex(0)}; }
inline TierAt OnPageable() { return {Tier::kPageable, DeviceIndex(0)}; }
inline TierAt OnDisk() { return {Tier::kDisk, DeviceIndex(0)}; }

// "device 0", "host", "pageable", "disk".
std::string ToString(TierAt at);
// "1.4 GiB", "512 B".
std::string HumanBytes(uint64_t bytes);

}  // namespace hoistd

#endif  // HOIST_DAEMON_TYPES_TIER_H_
