// Addresses of one tensor, made of slabs that can be replaced.
#ifndef HOIST_CLIENT_SRC_DEVICE_PIECE_RANGE_H_
#define HOIST_CLIENT_SRC_DEVICE_PIECE_RANGE_H_

#include <array>
#include <cstdint>
#include <memory>

#include "client/src/device/device_map.h"
#include "hoist/shared/status.h"

namespace hoist {

// Threads:  one at a time. Any thread, or the GPU, may read placed slabs.
// Owns:     the addresses, and their mappings.
class PieceRange {
 public:
  virtual ~PieceRange() = default;

  // Fixed for the range's life.
  virtual const void* address() const = 0;
  // Maps the slab for reading at `offset`, over a slab of the same size. A GPU
  // must not be reading there; a CPU may, and reads either slab.
  virtual Status Place(uint64_t offset, const SlabHandle& slab) = 0;
  // The same over empty addresses, in order of offsets. Readable only after
  // Open, which does the slowest work of a GPU's driver for many slabs at once.
  virtual Status Lay(uint64_t offset, const SlabHandle& slab) = 0;
  // All pieces have been laid.
  virtual Status Open() = 0;
  // Maps the process's own memory behind the pieces until DropOwn, for reading
  // and writing.
  virtual Status LayOwn(uint64_t offset, const SlabHandle& own) = 0;
  // Unmaps it, where there is any; nothing may be accessing it.
  virtual void DropOwn() = 0;
  // Unmaps everything; nothing may be reading.
  virtual Status Clear() = 0;
};

// Memory on the device that is not hoistd's. What is mapped stays without it.
using OwnSlab = std::shared_ptr<const SlabHandle>;

// `bytes`: a multiple of 2 MiB, in all of these.
Result<OwnSlab> CreateEmulatedSlab(uint64_t bytes);
Result<OwnSlab> CreateCudaSlab(const std::array<uint8_t, 16>& uuid,
                               uint64_t bytes);
Result<std::unique_ptr<PieceRange>> CreateEmulatedRange(uint64_t bytes);
// On the GPU with this UUID, in its primary context.
Result<std::unique_ptr<PieceRange>> CreateCudaRange(
    const std::array<uint8_t, 16>& uuid, uint64_t bytes);

}  // namespace hoist

#endif  // HOIST_CLIENT_SRC_DEVICE_PIECE_RANGE_H_
