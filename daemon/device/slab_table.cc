#include "daemon/device/slab_table.h"

#include <iterator>

#include "absl/strings/str_cat.h"
#include "daemon/base/check.h"

namespace hoistd {

absl::Status SlabTable::CheckNew(const SlabSpec& spec) const {
  const auto refuse = [&](const auto&... why) {
    return absl::InvalidArgumentError(absl::StrCat("slab ", spec.id.number(),
                                                   " at ", spec.offset, " + ",
                                                   spec.bytes, ": ", why...));
  };
  if (offset_of_.contains(spec.id)) return refuse("the id is taken");
  if (spec.bytes == 0 || spec.bytes % granularity_ != 0 ||
      spec.offset % granularity_ != 0) {
    return refuse("place and size must be multiples of ", granularity_);
  }
  if (spec.offset > span_bytes_ || spec.bytes > span_bytes_ - spec.offset) {
    return refuse("outside the span of ", span_bytes_, " bytes");
  }
  const auto next = by_offset_.lower_bound(spec.offset);
  if (next != by_offset_.end() && next->first < spec.offset + spec.bytes) {
    return refuse("lies over slab ", next->second.id.number());
  }
  if (next != by_offset_.begin()) {
    const SlabSpec& before = std::prev(next)->second;
    if (before.offset + before.bytes > spec.offset) {
      return refuse("lies over slab ", before.id.number());
    }
  }
  return absl::OkStatus();
}

void SlabTable::Add(const SlabSpec& spec) {
  by_offset_[spec.offset] = spec;
  offset_of_[spec.id] = spec.offset;
  total_bytes_ += spec.bytes;
}

absl::StatusOr<SlabSpec> SlabTable::Find(SlabId id) const {
  const auto it = offset_of_.find(id);
  if (it == offset_of_.end()) {
    return absl::NotFoundError(absl::StrCat("no slab ", id.number()));
  }
  return by_offset_.at(it->second);
}

void SlabTable::Remove(SlabId id) {
  const auto it = offset_of_.find(id);
  HOIST_CHECK(it != offset_of_.end());
  const auto slab = by_offset_.find(it->second);
  total_bytes_ -= slab->second.bytes;
  by_offset_.erase(slab);
  offset_of_.erase(it);
}

absl::Status SlabTable::CheckRange(uint64_t offset, uint64_t bytes) const {
  const auto refuse = [&](const auto&... why) {
    return absl::InvalidArgumentError(
        absl::StrCat("device range ", offset, " + ", bytes, ": ", why...));
  };
  if (offset > span_bytes_ || bytes > span_bytes_ - offset) {
    return refuse("outside the span of ", span_bytes_, " bytes");
  }
  auto it = by_offset_.upper_bound(offset);
  if (it == by_offset_.begin()) return refuse("in no slab");
  --it;
  const uint64_t end = offset + bytes;
  uint64_t covered = it->second.offset + it->second.bytes;
  if (covered <= offset) return refuse("in no slab");
  bool ipc = it->second.backing == Backing::kIpc;
  while (covered < end) {
    ++it;
    if (it == by_offset_.end() || it->second.offset != covered) {
      return refuse("byte ", covered, " is in no slab");
    }
    ipc |= it->second.backing == Backing::kIpc;
    if (ipc) {
      return refuse("crosses into slab ", it->second.id.number(),
                    ", and IPC slabs are not side by side; split it there");
    }
    covered = it->second.offset + it->second.bytes;
  }
  return absl::OkStatus();
}

const SlabSpec& SlabTable::At(uint64_t offset) const {
  const auto it = by_offset_.upper_bound(offset);
  HOIST_CHECK(it != by_offset_.begin());
  return std::prev(it)->second;
}

}  // namespace hoistd
