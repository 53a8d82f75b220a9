// A worker's read-only view of one device's span: the slabs it was given,
// mapped at base + offset.
#ifndef HOIST_CLIENT_DEVICE_MAP_H_
#define HOIST_CLIENT_DEVICE_MAP_H_

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
  // Of one image; a GPU's is not mapped in the span, but where a PieceRange
  // puts it.
  bool apart = false;
  int numa_node = 0;  // Of the driver's host memory.
};

// A slab apart, to be mapped anywhere in this process for as long as it is
// imported.
struct SlabHandle {
  uint64_t bytes = 0;
  const std::byte* memory = nullptr;  // kMemfd: where it is mapped.
  cuda::Allocation allocation = 0;    // kVmm.
};

// Threads:  thread-safe.
// Owns:     the mappings; they go with it. A process holds one per device, so
//           that each slab is opened once, whatever the number of sessions.
class DeviceMap {
 public:
  virtual ~DeviceMap() = default;

  // Maps a slab for reading. Again with the same id: nothing happens.
  virtual Status Import(SlabImport slab) = 0;
  // Gives the slab's memory back. Nothing may use it any more.
  virtual Status Drop(uint64_t slab_id) = 0;
  // The address of `offset`, which lies in an imported slab; nullptr if not.
  // Where backing is kMemfd or kVmm, ranges over neighbouring slabs are
  // contiguous.
  virtual const void* Address(uint64_t offset) const = 0;
  // Of the slab apart that begins at `offset`. NotFound.
  virtual Result<SlabHandle> Handle(uint64_t offset) const = 0;
};

// `span_bytes` of address space are reserved; memory comes with the slabs.
Result<std::unique_ptr<DeviceMap>> CreateEmulatedDeviceMap(uint64_t span_bytes);

// `uuid` picks this process's CUDA device. Uses the driver API of the
// libcuda.so.1 found at run time, in the device's primary context.
// Unavailable: no driver here. NotFound: no such device is visible here (say
// so, and name CUDA_VISIBLE_DEVICES).
Result<std::unique_ptr<DeviceMap>> CreateCudaDeviceMap(
    const std::array<uint8_t, 16>& uuid, uint64_t span_bytes);

}  // namespace hoist

#endif  // HOIST_CLIENT_DEVICE_MAP_H_
