// Addresses of one tensor that is made of slabs, each of which may be another
// one's place tomorrow.
#ifndef HOIST_CLIENT_SRC_PIECE_RANGE_H_
#define HOIST_CLIENT_SRC_PIECE_RANGE_H_

#include <array>
#include <cstdint>
#include <memory>

#include "client/src/device_map.h"
#include "hoist/shared/status.h"

namespace hoist {

// Threads:  one at a time. What is placed is read by any thread, or by the GPU.
// Owns:     the addresses, and what is mapped there.
class PieceRange {
 public:
  virtual ~PieceRange() = default;

  // Fixed for the range's life.
  virtual const void* address() const = 0;
  // Maps the slab for reading at `offset`, in the place of what was there,
  // which has the same size. On a GPU nothing may be reading there; a CPU that
  // does reads either.
  virtual Status Place(uint64_t offset, const SlabHandle& slab) = 0;
  // The same where nothing is yet, from the first offset to the last. It cannot
  // be read until Open: what takes a GPU's driver longer than all else, piece
  // by piece, is done for many at once.
  virtual Status Lay(uint64_t offset, const SlabHandle& slab) = 0;
  // All of the range has been laid.
  virtual Status Open() = 0;
  // Nothing is mapped any more, as at first; nothing may be reading.
  virtual Status Clear() = 0;
};

// `bytes`: a multiple of 2 MiB.
Result<std::unique_ptr<PieceRange>> CreateEmulatedRange(uint64_t bytes);
// On the GPU with this UUID, in its primary context.
Result<std::unique_ptr<PieceRange>> CreateCudaRange(
    const std::array<uint8_t, 16>& uuid, uint64_t bytes);

}  // namespace hoist

#endif  // HOIST_CLIENT_SRC_PIECE_RANGE_H_
