#include "daemon/core/extent_map.h"

#include <algorithm>
#include <iterator>

#include "daemon/base/check.h"

namespace hoistd {

ExtentMap::ExtentMap(uint64_t bytes) { Grow(bytes); }

void ExtentMap::Grow(uint64_t bytes) {
  if (bytes == 0) return;
  if (!blocks_.empty() && !blocks_.rbegin()->second.owner.has_value()) {
    blocks_.rbegin()->second.bytes += bytes;
  } else {
    blocks_[bytes_] = {bytes, std::nullopt};
  }
  bytes_ += bytes;
}

void ExtentMap::Shrink(uint64_t bytes) {
  if (bytes == 0) return;
  HOIST_CHECK(trailing_free() >= bytes);
  const auto last = std::prev(blocks_.end());
  last->second.bytes -= bytes;
  if (last->second.bytes == 0) blocks_.erase(last);
  bytes_ -= bytes;
}

std::optional<uint64_t> ExtentMap::Allocate(uint64_t bytes, OwnerId owner) {
  HOIST_CHECK(bytes > 0);
  auto best = blocks_.end();
  for (auto it = blocks_.begin(); it != blocks_.end(); ++it) {
    if (it->second.owner.has_value() || it->second.bytes < bytes) continue;
    if (best == blocks_.end() || it->second.bytes < best->second.bytes) {
      best = it;
    }
  }
  if (best == blocks_.end()) return std::nullopt;
  const uint64_t offset = best->first;
  Occupy(best, bytes, owner);
  return offset;
}

void ExtentMap::AllocateAt(uint64_t offset, uint64_t bytes, OwnerId owner) {
  HOIST_CHECK(bytes > 0);
  auto it = blocks_.upper_bound(offset);
  HOIST_CHECK(it != blocks_.begin());
  --it;
  HOIST_CHECK(!it->second.owner.has_value());
  const uint64_t before = offset - it->first;
  HOIST_CHECK(it->second.bytes >= before + bytes);
  if (before > 0) {
    const uint64_t rest = it->second.bytes - before;
    it->second.bytes = before;
    it = blocks_.emplace(offset, Block{rest, std::nullopt}).first;
  }
  Occupy(it, bytes, owner);
}

void ExtentMap::Occupy(Blocks::iterator block, uint64_t bytes, OwnerId owner) {
  const uint64_t rest = block->second.bytes - bytes;
  block->second = {bytes, owner};
  if (rest > 0) blocks_[block->first + bytes] = {rest, std::nullopt};
  used_ += bytes;
  CheckTotals();
}

void ExtentMap::Free(uint64_t offset) {
  auto it = blocks_.find(offset);
  HOIST_CHECK(it != blocks_.end() && it->second.owner.has_value());
  used_ -= it->second.bytes;
  it->second.owner.reset();
  const auto next = std::next(it);
  if (next != blocks_.end() && !next->second.owner.has_value()) {
    it->second.bytes += next->second.bytes;
    blocks_.erase(next);
  }
  if (it != blocks_.begin()) {
    const auto previous = std::prev(it);
    if (!previous->second.owner.has_value()) {
      previous->second.bytes += it->second.bytes;
      blocks_.erase(it);
    }
  }
  CheckTotals();
}

// A window over the blocks: both ends move right only, so this is one pass.
std::optional<Hole> ExtentMap::CheapestHole(uint64_t bytes, uint64_t tail_bytes,
                                            KeepValueFn value) const {
  struct Entry {
    uint64_t offset;
    uint64_t bytes;
    double value;
    std::optional<OwnerId> owner;
  };
  std::optional<Hole> best;
  std::vector<Entry> run;  // Free and evictable neighbours.
  size_t first = 0;        // The window is run[first..].
  uint64_t window = 0;

  const auto consider = [&] {
    // Drop from the left what the window does not need.
    while (first < run.size() && window - run[first].bytes >= bytes) {
      window -= run[first++].bytes;
    }
    if (window < bytes) return;
    double sum = 0;
    for (size_t i = first; i < run.size(); ++i) sum += run[i].value;
    if (best.has_value() && best->value <= sum) return;
    best = Hole{run[first].offset, {}, sum};
    for (size_t i = first; i < run.size(); ++i) {
      if (run[i].owner.has_value()) best->victims.push_back(*run[i].owner);
    }
  };
  const auto add = [&](Entry entry) {
    run.push_back(entry);
    window += entry.bytes;
    consider();
  };

  for (const auto& [offset, block] : blocks_) {
    std::optional<double> worth = 0;
    if (block.owner.has_value()) worth = value(*block.owner);
    if (!worth.has_value()) {  // A wall: start again behind it.
      run.clear();
      first = 0;
      window = 0;
      continue;
    }
    add({offset, block.bytes, *worth, block.owner});
  }
  if (tail_bytes > 0) add({bytes_, tail_bytes, 0, std::nullopt});
  return best;
}

uint64_t ExtentMap::largest_free() const {
  uint64_t largest = 0;
  for (const auto& [offset, block] : blocks_) {
    if (!block.owner.has_value()) largest = std::max(largest, block.bytes);
  }
  return largest;
}

uint64_t ExtentMap::trailing_free() const {
  if (blocks_.empty() || blocks_.rbegin()->second.owner.has_value()) return 0;
  return blocks_.rbegin()->second.bytes;
}

std::vector<OwnerId> ExtentMap::Owners() const {
  std::vector<OwnerId> owners;
  for (const auto& [offset, block] : blocks_) {
    if (block.owner.has_value()) owners.push_back(*block.owner);
  }
  return owners;
}

void ExtentMap::CheckTotals() const {
  uint64_t used = 0;
  uint64_t end = 0;
  for (const auto& [offset, block] : blocks_) {
    HOIST_CHECK(offset == end);
    end += block.bytes;
    if (block.owner.has_value()) used += block.bytes;
  }
  HOIST_CHECK(end == bytes_);
  HOIST_CHECK(used == used_);
}

}  // namespace hoistd
