// Host memory that the node's devices read in place (zero-copy).
#ifndef HOIST_DAEMON_DEVICE_IN_PLACE_DEVICE_H_
#define HOIST_DAEMON_DEVICE_IN_PLACE_DEVICE_H_

#include <cstdint>
#include <memory>

#include "absl/status/statusor.h"
#include "daemon/device/mapped_device.h"
#include "daemon/types/device.h"

namespace hoistd {

struct InPlaceOptions {
  DeviceIndex index;  // Behind all others.
  uint64_t total_bytes = 0;
  uint64_t span_bytes = 0;
  // How many GPUs this process sees, which are to read it. 0: emulated devices
  // do, whose workers' CPUs map it.
  int gpus = 0;
  // Those GPUs cannot: for arenas, which are memfds then.
  bool arenas_alone = false;
};

// In the books it is one more device: images lie in its slabs, are leased,
// evicted and taken over as on any other. A worker maps a slab for its GPU,
// whose kernels then read over the link. hoistd's CPUs fill it, and other
// devices' copies come from it.
//
// A MappedDevice over memfds, or over the driver's own host memory (VMM). That
// is pinned from the start, and opens by a descriptor as a GPU's does.
class InPlaceDevice final : public MappedDevice {
 public:
  // InvalidArgument: a size is 0 or not a multiple of the granularity.
  // Unimplemented: these GPUs, or their driver, cannot share host memory.
  static absl::StatusOr<std::unique_ptr<InPlaceDevice>> Create(
      const InPlaceOptions& options);

 private:
  using MappedDevice::MappedDevice;
};

}  // namespace hoistd

#endif  // HOIST_DAEMON_DEVICE_IN_PLACE_DEVICE_H_
