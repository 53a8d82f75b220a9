#include "daemon/device/in_place_device.h"

#include <utility>
#include <vector>

#include "absl/memory/memory.h"
#include "daemon/base/status.h"
#include "daemon/device/emulated_device.h"
#include "daemon/device/memfd_memory.h"
#include "daemon/device/vmm_host_memory.h"

namespace hoistd {
namespace {

absl::StatusOr<std::unique_ptr<SlabMemory>> MemoryOfGpus(
    const InPlaceOptions& options) {
  HOIST_ASSIGN_OR_RETURN(const hoist::cuda::Driver driver,
                         ToAbsl(hoist::cuda::Driver::Load()));
  std::vector<hoist::cuda::DeviceId> gpus(static_cast<size_t>(options.gpus));
  for (int i = 0; i < options.gpus; ++i) {
    HOIST_RETURN_IF_ERROR(ToAbsl(driver.Check(
        driver.device_get(&gpus[static_cast<size_t>(i)], i), "find a GPU")));
  }
  return VmmHostMemory::Create(driver, std::move(gpus), options.span_bytes);
}

}  // namespace

absl::StatusOr<std::unique_ptr<InPlaceDevice>> InPlaceDevice::Create(
    const InPlaceOptions& options) {
  MappedDeviceOptions mapped;
  DeviceInfo& info = mapped.info;
  info.index = options.index;
  info.name = "in place";
  // The same whatever other devices there are: it is there after a restart.
  info.uuid = MakeDeviceUuid("in-place", DeviceIndex(0));
  info.kind = DeviceKind::kInPlace;
  info.total_bytes = options.total_bytes;
  info.free_bytes = options.total_bytes;
  info.span_bytes = options.span_bytes;
  info.arenas_alone = options.arenas_alone;
  HOIST_RETURN_IF_ERROR(CheckSizes(info));
  if (options.gpus == 0 || options.arenas_alone) {
    HOIST_ASSIGN_OR_RETURN(mapped.memory, MemfdMemory::Create(info.span_bytes));
  } else {
    HOIST_ASSIGN_OR_RETURN(mapped.memory, MemoryOfGpus(options));
  }
  return absl::WrapUnique(new InPlaceDevice(std::move(mapped)));
}

}  // namespace hoistd
