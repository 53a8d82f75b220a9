// Texts that name a tier, and the key of hoistd.toml that bounds it.
#ifndef HOIST_DAEMON_CORE_DEVICE_NAMES_H_
#define HOIST_DAEMON_CORE_DEVICE_NAMES_H_

#include <cstddef>
#include <string>
#include <vector>

#include "daemon/types/device.h"
#include "daemon/types/ids.h"
#include "daemon/types/tier.h"

namespace hoistd {

// In-place memory is a device in the books only: in texts it is no device and
// has no number.
//
// Threads:  immutable.
class DeviceNames {
 public:
  // No memory is in place.
  DeviceNames() = default;
  explicit DeviceNames(const std::vector<DeviceInfo>& devices);

  bool IsInPlace(TierAt at) const;
  // Devices in texts, without in-place memory.
  size_t count() const { return in_place_.size() - all_in_place_; }
  // "device 0", "host"; "the memory in place".
  std::string Of(TierAt at) const;
  // "on device 0", "on host"; "in place".
  std::string On(TierAt at) const;
  // The key of hoistd.toml for its size: "device.pool".
  const char* KeyOf(TierAt at) const;

 private:
  std::vector<bool> in_place_;  // By device.
  size_t all_in_place_ = 0;     // Number of true entries.
};

}  // namespace hoistd

#endif  // HOIST_DAEMON_CORE_DEVICE_NAMES_H_
