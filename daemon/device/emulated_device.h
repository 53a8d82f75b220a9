// An emulated GPU: host memory that clients map.
#ifndef HOIST_DAEMON_DEVICE_EMULATED_DEVICE_H_
#define HOIST_DAEMON_DEVICE_EMULATED_DEVICE_H_

#include <cstdint>
#include <memory>
#include <string>

#include "absl/status/statusor.h"
#include "absl/time/time.h"
#include "daemon/base/clock.h"
#include "daemon/device/mapped_device.h"
#include "daemon/types/device.h"

namespace hoistd {

// A version 8 uuid (RFC 9562: vendor-specific) for a device that is not CUDA's.
// The same in every build and on every host.
std::array<uint8_t, 16> MakeDeviceUuid(const std::string& pool,
                                       DeviceIndex index);

struct EmulatedDeviceOptions {
  DeviceIndex index;
  // Determines the uuid, with the index, so that restarts do not change it.
  std::string pool = "emulated";
  uint64_t total_bytes = 0;  // Slabs together never exceed it. Not 0.
  uint64_t span_bytes = 0;   // 0: four times total_bytes.
  // Each way; 0: as fast as memory goes.
  uint64_t link_bytes_per_second = 0;
  absl::Duration link_latency = absl::ZeroDuration();
  const Clock* clock = nullptr;  // nullptr: CLOCK_MONOTONIC. Outlives it.
};

// A product feature, not a test double: the workers of a host without a GPU
// share one copy of the weights through it.
//
// A MappedDevice over memfds.
class EmulatedDevice final : public MappedDevice {
 public:
  // InvalidArgument: total or span is 0 or not a multiple of the granularity.
  static absl::StatusOr<std::unique_ptr<EmulatedDevice>> Create(
      const EmulatedDeviceOptions& options);

 private:
  using MappedDevice::MappedDevice;
};

}  // namespace hoistd

#endif  // HOIST_DAEMON_DEVICE_EMULATED_DEVICE_H_
