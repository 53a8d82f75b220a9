#include "daemon/core/extent_map.h"

#include <algorithm>
#include <iterator>
#include <tuple>

#include "daemon/base/check.h"

namespace hoistd {

ExtentMap::ExtentMap(uint64_t bytes) { Grow(bytes); }

ExtentMap::Blocks::iterator ExtentMap::AddFree(uint64_t offset,
                                               uint64_t bytes) {
  free_.emplace(bytes, offset);
  return blocks_.emplace(offset, Block{bytes, std::nullopt}).first;
}

void ExtentMap::RemoveFree(Blocks::iterator block) {
  HOIST_CHECK(free_.erase({block->second.bytes, block->first}) == 1);
  blocks_.erase(block);
}

void ExtentMap::Grow(uint64_t bytes) {
  if (bytes == 0) return;
  const uint64_t free = trailing_free();
  if (free > 0) RemoveFree(std::prev(blocks_.end()));
  CheckBlock(AddFree(bytes_ - free, free + bytes));
  bytes_ += bytes;
}

void ExtentMap::Shrink(uint64_t bytes) {
  if (bytes == 0) return;
  const uint64_t free = trailing_free();
  HOIST_CHECK(free >= bytes);
  RemoveFree(std::prev(blocks_.end()));
  if (free > bytes) AddFree(bytes_ - free, free - bytes);
  bytes_ -= bytes;
}

std::optional<uint64_t> ExtentMap::Allocate(uint64_t bytes, OwnerId owner) {
  HOIST_CHECK(bytes > 0);
  const auto best = free_.lower_bound({bytes, 0});
  if (best == free_.end()) return std::nullopt;
  const uint64_t offset = best->second;
  Occupy(blocks_.find(offset), bytes, owner);
  return offset;
}

bool ExtentMap::IsFree(uint64_t offset, uint64_t bytes) const {
  auto block = blocks_.upper_bound(offset);
  if (block == blocks_.begin()) return false;
  --block;
  return !block->second.owner.has_value() &&
         offset + bytes <= block->first + block->second.bytes;
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
    RemoveFree(it);
    AddFree(offset - before, before);
    it = AddFree(offset, rest);
  }
  Occupy(it, bytes, owner);
}

void ExtentMap::Occupy(Blocks::iterator block, uint64_t bytes, OwnerId owner) {
  const uint64_t offset = block->first;
  const uint64_t rest = block->second.bytes - bytes;
  RemoveFree(block);
  const auto taken = blocks_.emplace(offset, Block{bytes, owner}).first;
  if (rest > 0) AddFree(offset + bytes, rest);
  used_ += bytes;
  CheckBlock(taken);
}

void ExtentMap::Free(uint64_t offset) {
  const auto it = blocks_.find(offset);
  HOIST_CHECK(it != blocks_.end() && it->second.owner.has_value());
  uint64_t begin = offset;
  uint64_t bytes = it->second.bytes;
  used_ -= bytes;
  const auto next = std::next(it);
  if (next != blocks_.end() && !next->second.owner.has_value()) {
    bytes += next->second.bytes;
    RemoveFree(next);
  }
  if (it != blocks_.begin()) {
    const auto previous = std::prev(it);
    if (!previous->second.owner.has_value()) {
      begin = previous->first;
      bytes += previous->second.bytes;
      RemoveFree(previous);
    }
  }
  blocks_.erase(it);
  CheckBlock(AddFree(begin, bytes));
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

std::optional<std::vector<OwnerId>> ExtentMap::CheapestRoom(
    uint64_t bytes, KeepValueFn value) const {
  struct Entry {
    double value_a_byte;
    uint64_t offset;
  };
  std::vector<Entry> entries;
  for (const auto& [offset, block] : blocks_) {
    if (!block.owner.has_value()) continue;
    const std::optional<double> worth = value(*block.owner);
    if (!worth.has_value()) continue;
    entries.push_back({*worth / static_cast<double>(block.bytes), offset});
  }
  std::sort(entries.begin(), entries.end(), [](const Entry& a, const Entry& b) {
    return std::tie(a.value_a_byte, a.offset) <
           std::tie(b.value_a_byte, b.offset);
  });
  std::vector<OwnerId> victims;
  uint64_t room = bytes_ - used_;
  for (auto entry = entries.begin(); room < bytes; ++entry) {
    if (entry == entries.end()) return std::nullopt;
    const Block& block = blocks_.at(entry->offset);
    victims.push_back(*block.owner);
    room += block.bytes;
  }
  return victims;
}

uint64_t ExtentMap::largest_free() const {
  return free_.empty() ? 0 : free_.rbegin()->first;
}

uint64_t ExtentMap::trailing_free() const {
  if (blocks_.empty() || blocks_.rbegin()->second.owner.has_value()) return 0;
  return blocks_.rbegin()->second.bytes;
}

std::vector<OwnerId> ExtentMap::OwnersFrom(uint64_t offset) const {
  std::vector<OwnerId> owners;
  auto it = blocks_.upper_bound(offset);
  if (it != blocks_.begin()) --it;
  for (; it != blocks_.end(); ++it) {
    const Block& block = it->second;
    if (it->first + block.bytes <= offset) continue;
    if (block.owner.has_value()) owners.push_back(*block.owner);
  }
  return owners;
}

void ExtentMap::CheckBlock(Blocks::const_iterator block) const {
  HOIST_CHECK(block->second.bytes > 0 && used_ <= bytes_);
  const auto joins = [&](Blocks::const_iterator low,
                         Blocks::const_iterator high) {
    HOIST_CHECK(low->first + low->second.bytes == high->first);
    HOIST_CHECK(low->second.owner.has_value() ||
                high->second.owner.has_value());
  };
  if (block != blocks_.begin()) joins(std::prev(block), block);
  if (const auto next = std::next(block); next != blocks_.end()) {
    joins(block, next);
  }
}

void ExtentMap::CheckTotals() const {
  uint64_t used = 0;
  uint64_t end = 0;
  size_t free = 0;
  for (auto block = blocks_.begin(); block != blocks_.end(); ++block) {
    HOIST_CHECK(block->first == end);
    CheckBlock(block);
    const auto& [bytes, owner] = block->second;
    end += bytes;
    if (owner.has_value()) {
      used += bytes;
    } else {
      HOIST_CHECK(free_.contains({bytes, block->first}));
      ++free;
    }
  }
  HOIST_CHECK(end == bytes_);
  HOIST_CHECK(used == used_);
  HOIST_CHECK(free == free_.size());
}

}  // namespace hoistd
