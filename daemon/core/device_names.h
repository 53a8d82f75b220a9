// What people read of a tier, and of the key of hoistd.toml that bounds it.
#ifndef HOIST_DAEMON_CORE_DEVICE_NAMES_H_
#define HOIST_DAEMON_CORE_DEVICE_NAMES_H_

#include <cstddef>
#include <string>
#include <vector>

#include "daemon/terms/device.h"
#include "daemon/terms/ids.h"
#include "daemon/terms/tier.h"

namespace hoistd {

// Memory that is read in place is one more device in the books alone: to those
// who read texts it is none, and has no number.
//
// Threads:  immutable.
class DeviceNames {
 public:
  // None is read in place.
  DeviceNames() = default;
  explicit DeviceNames(const std::vector<DeviceInfo>& devices);

  bool IsInPlace(TierAt at) const;
  // Devices that people know of; what is read in place is none.
  size_t count() const { return in_place_.size() - all_in_place_; }
  // "device 0", "host"; "the memory in place".
  std::string Of(TierAt at) const;
  // "on device 0", "on host"; "in place".
  std::string On(TierAt at) const;
  // Of hoistd.toml, that says how much there is: "device.pool".
  const char* KeyOf(TierAt at) const;

 private:
  std::vector<bool> in_place_;  // By device.
  size_t all_in_place_ = 0;     // Of those.
};

}  // namespace hoistd

#endif  // HOIST_DAEMON_CORE_DEVICE_NAMES_H_
