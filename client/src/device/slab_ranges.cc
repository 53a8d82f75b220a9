#include "client/src/device/slab_ranges.h"

#include <iterator>
#include <string>

namespace hoist {

Status SlabRanges::CheckFree(const SlabImport& slab) const {
  const std::string name = "slab " + std::to_string(slab.id);
  if (slab.bytes == 0 || slab.offset > span_bytes_ ||
      slab.bytes > span_bytes_ - slab.offset) {
    return Status(Code::kInvalidArgument,
                  name + " at " + std::to_string(slab.offset) + " + " +
                      std::to_string(slab.bytes) +
                      " is outside the device's span of " +
                      std::to_string(span_bytes_) + " bytes");
  }
  const auto next = by_offset_.lower_bound(slab.offset);
  const SlabRange* over = nullptr;
  if (next != by_offset_.end() && next->first < slab.offset + slab.bytes) {
    over = &next->second;
  } else if (next != by_offset_.begin()) {
    const SlabRange& before = std::prev(next)->second;
    if (before.offset + before.bytes > slab.offset) over = &before;
  }
  if (over == nullptr) return Status();
  return Status(Code::kInvalidArgument, name + " lies over slab " +
                                            std::to_string(over->id) +
                                            "; drop that one first");
}

void SlabRanges::Add(const SlabRange& range) {
  by_offset_[range.offset] = range;
  offset_of_[range.id] = range.offset;
}

std::optional<SlabRange> SlabRanges::Remove(uint64_t id) {
  const auto it = offset_of_.find(id);
  if (it == offset_of_.end()) return std::nullopt;
  auto node = by_offset_.extract(it->second);
  offset_of_.erase(it);
  return node.mapped();
}

const SlabRange* SlabRanges::Find(uint64_t id) const {
  const auto it = offset_of_.find(id);
  return it == offset_of_.end() ? nullptr : &by_offset_.at(it->second);
}

const SlabRange* SlabRanges::At(uint64_t offset) const {
  auto it = by_offset_.upper_bound(offset);
  if (it == by_offset_.begin()) return nullptr;
  const SlabRange& range = std::prev(it)->second;
  return offset - range.offset < range.bytes ? &range : nullptr;
}

}  // namespace hoist
