// Opens the devices that hoistd.toml and this machine offer.
#ifndef HOIST_DAEMON_APP_OPEN_DEVICES_H_
#define HOIST_DAEMON_APP_OPEN_DEVICES_H_

#include <cstddef>
#include <cstdint>
#include <memory>
#include <span>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "daemon/config/config.h"
#include "daemon/types/device.h"

namespace hoistd {

struct OpenedDevices {
  std::vector<std::unique_ptr<Device>> all;
  // The last device's memory, if devices read it in place.
  std::span<std::byte> in_place;
  std::string no_in_place;   // Why they cannot.
  std::string gpu_on_board;  // An unused GPU; "": none.
  std::string note;          // For the operator; "": none.
};

// GPUs, or emulated devices. `note` is set if these replace a GPU that is there
// and unusable. FailedPrecondition: the configuration demands a GPU, and there
// is none.
absl::StatusOr<OpenedDevices> OpenDevices(const DeviceConfig& config);
// Adds `bytes` of host memory for in-place reads. If that is unavailable,
// `no_in_place` gives the reason: workers stage instead, and the memory serves
// arenas alone.
void AddInPlace(uint64_t bytes, OpenedDevices& devices);

// hoist's part of the device's memory, in bytes.
uint64_t PoolOf(const Device& device, const DeviceConfig& config);

}  // namespace hoistd

#endif  // HOIST_DAEMON_APP_OPEN_DEVICES_H_
