// The owners of the bytes of one contiguous range.
//
// The ledger of a tier: each byte is free or has one owner. A change checks
// what it touches; CheckTotals checks everything.
#ifndef HOIST_DAEMON_CORE_EXTENT_MAP_H_
#define HOIST_DAEMON_CORE_EXTENT_MAP_H_

#include <cstdint>
#include <map>
#include <optional>
#include <set>
#include <utility>
#include <vector>

#include "absl/functional/function_ref.h"
#include "daemon/types/ids.h"

namespace hoistd {

// The value of keeping a copy; nullopt: it cannot be moved now.
using KeepValueFn = absl::FunctionRef<std::optional<double>(OwnerId)>;

// A range that is free, or becomes free by evicting `victims`.
struct Hole {
  uint64_t offset = 0;
  std::vector<OwnerId> victims;
  double value = 0;  // Sum over the victims.
};

// Threads: one at a time.
// Bounds:  as many blocks as owners and gaps between them. Allocate and Free
//          take logarithmic time; the Cheapest calls look at each block.
class ExtentMap {
 public:
  explicit ExtentMap(uint64_t bytes = 0);

  // Adds free bytes at the end.
  void Grow(uint64_t bytes);
  // Removes free bytes at the end; they must be free.
  void Shrink(uint64_t bytes);

  // The smallest free range that fits; nullopt: none. `bytes` > 0.
  std::optional<uint64_t> Allocate(uint64_t bytes, OwnerId owner);
  // Whether [offset, offset + bytes) is in the range and free.
  bool IsFree(uint64_t offset, uint64_t bytes) const;
  // [offset, offset + bytes) must be free.
  void AllocateAt(uint64_t offset, uint64_t bytes, OwnerId owner);
  // Frees the extent that begins at `offset`.
  void Free(uint64_t offset);

  // The cheapest run of free and evictable extents that fits `bytes`. It may
  // reach `tail_bytes` beyond bytes(), by which the range could grow. nullopt:
  // none fits.
  std::optional<Hole> CheapestHole(uint64_t bytes, uint64_t tail_bytes,
                                   KeepValueFn value) const;

  // Victims, the least valuable per byte first, that free `bytes` in sum,
  // wherever they lie. nullopt: not enough can move.
  std::optional<std::vector<OwnerId>> CheapestRoom(uint64_t bytes,
                                                   KeepValueFn value) const;

  uint64_t bytes() const { return bytes_; }
  uint64_t used() const { return used_; }
  uint64_t largest_free() const;
  uint64_t trailing_free() const;
  // Checks that the blocks tile the range, free neighbours are merged, and the
  // totals match; a mismatch is our bug. For tests: looks at each block.
  void CheckTotals() const;
  // Owners of extents that end behind `offset`, in address order.
  std::vector<OwnerId> OwnersFrom(uint64_t offset) const;

 private:
  struct Block {
    uint64_t bytes = 0;
    std::optional<OwnerId> owner;  // nullopt: free.
  };
  using Blocks = std::map<uint64_t, Block>;

  void Occupy(Blocks::iterator block, uint64_t bytes, OwnerId owner);
  // Only these add, remove and resize free blocks.
  Blocks::iterator AddFree(uint64_t offset, uint64_t bytes);
  void RemoveFree(Blocks::iterator block);
  void CheckBlock(Blocks::const_iterator block) const;

  Blocks blocks_;  // By offset; neighbours tile the range; free ones merge.
  std::set<std::pair<uint64_t, uint64_t>> free_;  // Bytes, offset.
  uint64_t bytes_ = 0;
  uint64_t used_ = 0;
};

}  // namespace hoistd

#endif  // HOIST_DAEMON_CORE_EXTENT_MAP_H_
