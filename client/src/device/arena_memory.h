// An arena's memory, for this process and its GPU.
#ifndef HOIST_CLIENT_SRC_DEVICE_ARENA_MEMORY_H_
#define HOIST_CLIENT_SRC_DEVICE_ARENA_MEMORY_H_

#include <array>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <vector>

#include "client/src/device/arena_ranges.h"
#include "client/src/device/device_map.h"
#include "hoist/shared/cuda_driver.h"
#include "hoist/shared/status.h"

namespace hoist {

// The slabs of an arena side by side, readable and writable.
//
// Threads:  thread-safe.
// Owns:     the mapping and its pinning, which end with it, after all copies.
class ArenaMemory {
 public:
  virtual ~ArenaMemory() = default;

  virtual std::byte* base() const = 0;
  // The bytes that copies reach at the link's rate.
  virtual uint64_t pinned_bytes() const = 0;
  // FailedPrecondition: the stream is under capture. A graph's launches are not
  // ordered with takes and gives.
  virtual Status CheckStream(cuda::Stream stream) = 0;
  // A mark behind all earlier work on the stream. nullptr: that work is done.
  virtual Result<ArenaRanges::Mark> MarkOn(cuda::Stream stream) = 0;
  // Later work on the stream runs after `uses`.
  virtual Status WaitFor(const std::vector<ArenaRanges::Use>& uses,
                         cuda::Stream stream) = 0;
  // Blocks the caller until `uses` are done.
  virtual Status Synchronize(const std::vector<ArenaRanges::Use>& uses) = 0;
};

// Of memfds. The CPU's uses end with the give, so there are no marks.
Result<std::unique_ptr<ArenaMemory>> CreateEmulatedArenaMemory(
    std::vector<SlabImport> slabs);

// For the device with this UUID, in its primary context: the driver's host
// memory, which is pinned; or memfds, which are pinned in the background, with
// slower copies until then.
Result<std::unique_ptr<ArenaMemory>> CreateCudaArenaMemory(
    const std::array<uint8_t, 16>& uuid, std::vector<SlabImport> slabs);

}  // namespace hoist

#endif  // HOIST_CLIENT_SRC_DEVICE_ARENA_MEMORY_H_
