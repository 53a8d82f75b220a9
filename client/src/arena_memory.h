// An arena's memory, as this process and its GPU see it.
#ifndef HOIST_CLIENT_SRC_ARENA_MEMORY_H_
#define HOIST_CLIENT_SRC_ARENA_MEMORY_H_

#include <array>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <vector>

#include "client/src/arena_ranges.h"
#include "client/src/device_map.h"
#include "hoist/shared/cuda_driver.h"
#include "hoist/shared/status.h"

namespace hoist {

// The slabs of an arena side by side, readable and writable.
//
// Threads:  thread-safe.
// Owns:     the mapping, and how it is pinned; both go with it. Nothing copies
//           from or to it then.
class ArenaMemory {
 public:
  virtual ~ArenaMemory() = default;

  virtual std::byte* base() const = 0;
  // Of its bytes, those that copies reach at the link's rate.
  virtual uint64_t pinned_bytes() const = 0;
  // FailedPrecondition: the stream is being captured into a graph, whose
  // launches are in order with nothing that is taken or given.
  virtual Status CheckStream(cuda::Stream stream) = 0;
  // All that was put on the stream before. nullptr: it is done already.
  virtual Result<ArenaRanges::Mark> MarkOn(cuda::Stream stream) = 0;
  // What is put on the stream from now on runs behind these.
  virtual Status WaitFor(const std::vector<ArenaRanges::Use>& uses,
                         cuda::Stream stream) = 0;
  // The caller waits for them.
  virtual Status Synchronize(const std::vector<ArenaRanges::Use>& uses) = 0;
};

// Of memfds. The CPU is done with a block when it says so: there are no marks.
Result<std::unique_ptr<ArenaMemory>> CreateEmulatedArenaMemory(
    std::vector<SlabImport> slabs);

// For the device with this UUID, in its primary context: of the driver's host
// memory, which is pinned; or of memfds, which are pinned in the background,
// and copied from and to more slowly until they are.
Result<std::unique_ptr<ArenaMemory>> CreateCudaArenaMemory(
    const std::array<uint8_t, 16>& uuid, std::vector<SlabImport> slabs);

}  // namespace hoist

#endif  // HOIST_CLIENT_SRC_ARENA_MEMORY_H_
