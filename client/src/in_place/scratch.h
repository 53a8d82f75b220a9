// Memory behind in-place tensors, for a worker's copies of their cold units.
#ifndef HOIST_CLIENT_SRC_IN_PLACE_SCRATCH_H_
#define HOIST_CLIENT_SRC_IN_PLACE_SCRATCH_H_

#include <cstdint>
#include <memory>
#include <vector>

#include "client/src/device/piece_range.h"
#include "client/src/session/session.h"
#include "hoist/shared/status.h"

namespace hoist {

// A tensor: one group per piece, side by side.
struct InPlaceTensor {
  std::vector<uint32_t> groups;
  uint32_t units = 1;        // Equal parts, touched as a whole: rows, experts.
  uint64_t first_count = 0;  // Index of the units' counts, which tensors may
                             // share.
  uint64_t bytes = 0;        // That the pieces must have; 0: any number.
  uint64_t scratch_bytes = 0;  // Writable, behind the pieces; 0: none.
  uint32_t scratch = 0;        // Tensors with equal numbers share it.
};

// Makes the tensors' ranges of addresses, and lays the scratch.
class Scratch {
 public:
  explicit Scratch(const DeviceFacts& device) : device_(device) {}

  // Empty addresses for `piece_bytes`, and for the tensor's scratch behind
  // them. The range is used while this is.
  Result<std::unique_ptr<PieceRange>> MakeRange(uint64_t piece_bytes,
                                                const InPlaceTensor& tensor);
  // Memory for all of it, whose bytes are any. After a failure, Drop.
  Status Lay();
  // Gives it back; nothing may access it. Ends with `is_laid` false.
  void Drop();
  bool is_laid() const { return is_laid_; }

 private:
  struct Behind {
    PieceRange* range = nullptr;
    uint64_t offset = 0;
    uint64_t bytes = 0;
    uint32_t number = 0;
  };

  const DeviceFacts device_;
  std::vector<Behind> behind_;
  bool is_laid_ = false;
};

// The device memory of all their scratch.
uint64_t ScratchBytes(const std::vector<InPlaceTensor>& tensors);

}  // namespace hoist

#endif  // HOIST_CLIENT_SRC_IN_PLACE_SCRATCH_H_
