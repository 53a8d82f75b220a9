#include "client/src/device/arena_ranges.h"

#include <iterator>

namespace hoist {

ArenaRanges::ArenaRanges(uint64_t bytes) : bytes_(bytes) {
  if (bytes > 0) Add(0, {bytes, {}});
}

void ArenaRanges::Add(uint64_t offset, Free range) {
  by_size_.emplace(range.bytes, offset);
  free_.emplace(offset, std::move(range));
}

ArenaRanges::Free ArenaRanges::Remove(FreeRanges::iterator range) {
  by_size_.erase({range->second.bytes, range->first});
  Free removed = std::move(range->second);
  free_.erase(range);
  return removed;
}

void ArenaRanges::Merge(std::map<Stream, Last> from,
                        std::map<Stream, Last>& to) {
  for (auto& [stream, last] : from) {
    Last& known = to[stream];
    if (known.told < last.told) known = std::move(last);
  }
}

std::optional<ArenaRanges::Taken> ArenaRanges::Take(uint64_t bytes,
                                                    Stream stream) {
  if (bytes > bytes_) return std::nullopt;
  // A block of 0 bytes has an address of its own, too.
  const uint64_t needed =
      bytes == 0 ? kAlignment
                 : (bytes + kAlignment - 1) / kAlignment * kAlignment;
  const auto fit = by_size_.lower_bound({needed, 0});
  if (fit == by_size_.end()) return std::nullopt;
  const uint64_t offset = fit->second;
  Free range = Remove(free_.find(offset));
  Taken taken = {offset, needed, {}};
  for (const auto& [of, last] : range.uses) {
    if (of != stream) taken.after.push_back({of, last.mark});
  }
  if (range.bytes > needed) {
    Add(offset + needed, {range.bytes - needed, std::move(range.uses)});
  }
  taken_[offset] = needed;
  used_ += needed;
  return taken;
}

bool ArenaRanges::Give(uint64_t offset, std::vector<Use> uses) {
  const auto block = taken_.find(offset);
  if (block == taken_.end()) return false;
  Free range = {block->second, {}};
  used_ -= range.bytes;
  taken_.erase(block);
  for (Use& use : uses) {
    if (use.mark == nullptr) continue;
    range.uses[use.stream] = {std::move(use.mark), ++told_};
  }
  const auto after = free_.lower_bound(offset);
  if (after != free_.end() && after->first == offset + range.bytes) {
    Free next = Remove(after);
    range.bytes += next.bytes;
    Merge(std::move(next.uses), range.uses);
  }
  const auto behind = free_.lower_bound(offset);
  if (behind != free_.begin()) {
    const auto before = std::prev(behind);
    if (before->first + before->second.bytes == offset) {
      offset = before->first;
      Free first = Remove(before);
      range.bytes += first.bytes;
      Merge(std::move(first.uses), range.uses);
    }
  }
  Add(offset, std::move(range));
  return true;
}

uint64_t ArenaRanges::largest_free() const {
  return by_size_.empty() ? 0 : by_size_.rbegin()->first;
}

std::vector<ArenaRanges::Use> ArenaRanges::Uses() const {
  std::vector<Use> uses;
  for (const auto& [offset, range] : free_) {
    for (const auto& [stream, last] : range.uses) {
      uses.push_back({stream, last.mark});
    }
  }
  return uses;
}

}  // namespace hoist
