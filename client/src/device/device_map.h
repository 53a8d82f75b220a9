// A worker's read-only view of one device's span: its slabs, mapped at base +
// offset.
#ifndef HOIST_CLIENT_SRC_DEVICE_DEVICE_MAP_H_
#define HOIST_CLIENT_SRC_DEVICE_DEVICE_MAP_H_

#include <array>
#include <cstddef>
#include <cstdint>
#include <memory>

#include "hoist/shared/cuda_driver.h"
#include "hoist/shared/status.h"
#include "hoist/shared/unique_fd.h"

namespace hoist {

enum class SlabBacking { kMemfd = 1, kVmm = 2, kIpc = 3 };  // As in the proto.

struct SlabImport {
  uint64_t id = 0;
  uint64_t offset = 0;
  uint64_t bytes = 0;
  SlabBacking backing = SlabBacking::kMemfd;
  UniqueFd fd;                              // kMemfd, kVmm.
  std::array<uint8_t, 64> ipc_handle = {};  // kIpc.
  // A separate slab, of one image. A PieceRange maps a GPU's, not the span.
  bool apart = false;
  int numa_node = 0;  // Of the driver's host memory.
};

// Alignment of slabs and pieces: a GPU driver's smallest unit of mapping.
inline constexpr uint64_t kSlabAlignment = uint64_t{2} << 20;

// A separate slab, which can be mapped anywhere while it is imported.
struct SlabHandle {
  uint64_t bytes = 0;
  const std::byte* memory = nullptr;  // kMemfd: where it is mapped.
  cuda::Allocation allocation = 0;    // kVmm.
};

// Threads:  thread-safe.
// Owns:     the mappings, which end with it. A process holds one per device, so
//           that each slab is opened once for all sessions.
class DeviceMap {
 public:
  virtual ~DeviceMap() = default;

  // Maps a slab for reading. No effect for an imported id.
  virtual Status Import(SlabImport slab) = 0;
  // Gives the slab's memory back, after its last use.
  virtual Status Drop(uint64_t slab_id) = 0;
  // The address of `offset` in an imported slab; nullptr: in none. With kMemfd
  // or kVmm, ranges over neighbouring slabs are contiguous.
  virtual const void* Address(uint64_t offset) const = 0;
  // The separate slab that begins at `offset`. NotFound.
  virtual Result<SlabHandle> Handle(uint64_t offset) const = 0;
};

// Reserves `span_bytes` of address space; memory comes with the slabs.
Result<std::unique_ptr<DeviceMap>> CreateEmulatedDeviceMap(uint64_t span_bytes);

// `uuid` selects this process's CUDA device. Uses the driver API of the
// libcuda.so.1 found at run time, in the device's primary context. Unavailable:
// no driver. NotFound: no such device is visible; the message names
// CUDA_VISIBLE_DEVICES.
Result<std::unique_ptr<DeviceMap>> CreateCudaDeviceMap(
    const std::array<uint8_t, 16>& uuid, uint64_t span_bytes);

}  // namespace hoist

#endif  // HOIST_CLIENT_SRC_DEVICE_DEVICE_MAP_H_
