#include "client/src/in_place/scratch.h"

#include <map>
#include <string>
#include <utility>

namespace hoist {

Result<std::unique_ptr<PieceRange>> Scratch::MakeRange(
    uint64_t piece_bytes, const InPlaceTensor& tensor) {
  const bool emulated = device_.kind == DeviceKind::kEmulated;
  const uint64_t more = tensor.scratch_bytes;
  Result<std::unique_ptr<PieceRange>> range =
      emulated ? CreateEmulatedRange(piece_bytes + more)
               : CreateCudaRange(device_.uuid, piece_bytes + more);
  if (!range.ok() || more == 0) return range;
  for (const Behind& one : behind_) {
    if (one.number != tensor.scratch || one.bytes == more) continue;
    return Status(Code::kInvalidArgument,
                  "tensors that share scratch " +
                      std::to_string(tensor.scratch) + " have " +
                      std::to_string(one.bytes) + " and " +
                      std::to_string(more) + " bytes of it");
  }
  behind_.push_back({range->get(), piece_bytes, more, tensor.scratch});
  return range;
}

Status Scratch::Lay() {
  std::map<uint32_t, OwnSlab> slabs;  // Mappings keep the memory.
  for (const Behind& one : behind_) {
    OwnSlab& slab = slabs[one.number];
    if (slab == nullptr) {
      Result<OwnSlab> made = device_.kind == DeviceKind::kEmulated
                                 ? CreateEmulatedSlab(one.bytes)
                                 : CreateCudaSlab(device_.uuid, one.bytes);
      if (!made.ok()) return made.status();
      slab = std::move(made).value();
    }
    if (Status s = one.range->LayOwn(one.offset, *slab); !s.ok()) return s;
  }
  is_laid_ = true;
  return Status();
}

void Scratch::Drop() {
  for (const Behind& one : behind_) one.range->DropOwn();
  is_laid_ = false;
}

uint64_t ScratchBytes(const std::vector<InPlaceTensor>& tensors) {
  std::map<uint32_t, uint64_t> bytes;
  for (const InPlaceTensor& tensor : tensors) {
    if (tensor.scratch_bytes > 0) bytes[tensor.scratch] = tensor.scratch_bytes;
  }
  uint64_t all = 0;
  for (const auto& [number, of_it] : bytes) all += of_it;
  return all;
}

}  // namespace hoist
