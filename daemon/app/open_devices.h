// The devices that hoistd.toml and this machine have.
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
  // Of the last of them, if devices read in place there.
  std::span<std::byte> in_place;
  std::string no_in_place;   // Why they do not.
  std::string gpu_on_board;  // One that is not used; "": there is none.
  std::string note;          // What the operator should know; or "".
};

// GPUs, or emulated devices; of those `note` says if they stand in for a GPU
// that is there and cannot be used. FailedPrecondition: there is no GPU, and it
// must be one.
absl::StatusOr<OpenedDevices> OpenDevices(const DeviceConfig& config);
// Adds `bytes` of host memory that they read in place. Where that cannot be
// had, `no_in_place` says why: workers stage instead, and the memory is there
// for their arenas alone.
void AddInPlace(uint64_t bytes, OpenedDevices& devices);

// Of the device's memory, what hoist uses.
uint64_t PoolOf(const Device& device, const DeviceConfig& config);

}  // namespace hoistd

#endif  // HOIST_DAEMON_APP_OPEN_DEVICES_H_
