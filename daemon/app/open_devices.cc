#include "daemon/app/open_devices.h"

#include <algorithm>
#include <utility>

#include "absl/strings/str_cat.h"
#include "daemon/base/status.h"
#include "daemon/core/device_space.h"
#include "daemon/device/cuda_device.h"
#include "daemon/device/emulated_device.h"
#include "daemon/device/gpu_on_board.h"
#include "daemon/device/in_place_device.h"
#include "hoist/shared/image_layout.h"

namespace hoistd {
namespace {

constexpr uint64_t kGranule = uint64_t{2} << 20;
constexpr uint64_t kEmulatedPoolBytes = uint64_t{1} << 30;
// The largest GPU that "auto" reserves address space for.
constexpr uint64_t kLargestGpuBytes = uint64_t{256} << 30;

using Devices = std::vector<std::unique_ptr<Device>>;

absl::StatusOr<Devices> EmulatedDevices(const DeviceConfig& config) {
  const uint64_t pool =
      *hoist::AlignUp(config.pool_bytes.value_or(kEmulatedPoolBytes), kGranule);
  Devices devices;
  for (uint32_t i = 0; i < config.emulated.count; ++i) {
    EmulatedDeviceOptions options;
    options.index = DeviceIndex(i);
    options.total_bytes = pool;
    options.span_bytes = DeviceSpace::SpanFor(pool, kGranule);
    options.link_bytes_per_second = config.emulated.link_bytes_per_s;
    options.link_latency = config.emulated.latency;
    HOIST_ASSIGN_OR_RETURN(auto device, EmulatedDevice::Create(options));
    devices.push_back(std::move(device));
  }
  return devices;
}

absl::StatusOr<Devices> FindDevices(const DeviceConfig& config) {
  if (config.backend == DeviceConfig::Backend::kEmulated) {
    return EmulatedDevices(config);
  }
  CudaDeviceOptions options;
  options.backing =
      config.share == DeviceConfig::Share::kIpc ? Backing::kIpc : Backing::kVmm;
  options.span_bytes = DeviceSpace::SpanFor(
      config.pool_bytes.value_or(kLargestGpuBytes), kGranule);
  HOIST_ASSIGN_OR_RETURN(Devices devices, FindCudaDevices(options));
  if (!devices.empty()) return devices;
  if (config.backend == DeviceConfig::Backend::kCuda) {
    return absl::FailedPreconditionError(
        "device.backend is \"cuda\" and this process sees no GPU; set it to "
        "\"auto\" or \"emulated\", or repair the driver");
  }
  return EmulatedDevices(config);
}

}  // namespace

absl::StatusOr<OpenedDevices> OpenDevices(const DeviceConfig& config) {
  OpenedDevices devices;
  HOIST_ASSIGN_OR_RETURN(devices.all, FindDevices(config));
  const bool stands_in = config.backend == DeviceConfig::Backend::kAuto &&
                         devices.all[0]->info().kind == DeviceKind::kEmulated;
  if (stands_in) devices.gpu_on_board = GpuOnBoard("");
  if (!devices.gpu_on_board.empty()) {
    devices.note = absl::StrCat(
        "this machine has a GPU (", devices.gpu_on_board,
        ") that hoistd cannot use: ",
        hoist::cuda::Driver::Load().status().message(),
        "; its devices are emulated, in host memory. Repair the driver, or set "
        "device.backend to \"emulated\" if that is meant");
  }
  return devices;
}

void AddInPlace(uint64_t bytes, OpenedDevices& devices) {
  if (bytes == 0) {
    devices.no_in_place = "host.in_place in hoistd.toml gives it no memory";
    return;
  }
  InPlaceOptions options;
  options.index = DeviceIndex(static_cast<uint32_t>(devices.all.size()));
  options.total_bytes = bytes;
  options.span_bytes = DeviceSpace::SpanFor(bytes, kGranule);
  if (devices.all[0]->info().kind == DeviceKind::kCuda) {
    options.gpus = static_cast<int>(devices.all.size());
  }
  if (devices.all[0]->info().backing == Backing::kIpc) {
    devices.no_in_place =
        "its pieces are mapped one by one beside a device's, which legacy IPC "
        "memory (device.share = \"ipc\") does not allow";
    options.arenas_alone = true;
  }
  auto opened = InPlaceDevice::Create(options);
  if (!opened.ok() && options.gpus > 0) {
    devices.no_in_place = std::string(opened.status().message());
    options.arenas_alone = true;
    opened = InPlaceDevice::Create(options);
  }
  if (!opened.ok()) {
    devices.no_in_place = std::string(opened.status().message());
    return;
  }
  if (!options.arenas_alone) devices.in_place = (*opened)->span();
  devices.all.push_back(*std::move(opened));
}

uint64_t PoolOf(const Device& device, const DeviceConfig& config) {
  const DeviceInfo& info = device.info();
  if (info.kind == DeviceKind::kInPlace) return info.total_bytes;
  // Workers keep a fifth for their own tensors and contexts.
  const uint64_t automatic = info.kind == DeviceKind::kEmulated
                                 ? info.total_bytes
                                 : info.free_bytes / 5 * 4;
  const uint64_t pool =
      std::min(config.pool_bytes.value_or(automatic), info.total_bytes);
  return pool / info.granularity * info.granularity;
}

}  // namespace hoistd
