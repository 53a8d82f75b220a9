// Who holds which bytes of one contiguous range.
//
// The ledger of a tier: every byte is either free or belongs to one owner. What
// a change touches is checked at once; CheckTotals checks all of it.
#ifndef HOIST_DAEMON_CORE_EXTENT_MAP_H_
#define HOIST_DAEMON_CORE_EXTENT_MAP_H_

#include <cstdint>
#include <map>
#include <optional>
#include <set>
#include <utility>
#include <vector>

#include "absl/functional/function_ref.h"
#include "daemon/terms/ids.h"

namespace hoistd {

// What keeping a copy is worth; nullopt: it cannot be moved now.
using KeepValueFn = absl::FunctionRef<std::optional<double>(OwnerId)>;

// A place that is, or by evicting `victims` becomes, free.
struct Hole {
  uint64_t offset = 0;
  std::vector<OwnerId> victims;
  double value = 0;  // Of the victims, summed.
};

// Threads: one at a time.
// Bounds:  blocks are as many as owners and the gaps between them. Allocate and
//          Free take logarithmic time in them, the Cheapest look at each.
class ExtentMap {
 public:
  explicit ExtentMap(uint64_t bytes = 0);

  // Adds free bytes at the end.
  void Grow(uint64_t bytes);
  // Takes free bytes away at the end; they must be free.
  void Shrink(uint64_t bytes);

  // The smallest free range that fits; nullopt: there is none. `bytes` > 0.
  std::optional<uint64_t> Allocate(uint64_t bytes, OwnerId owner);
  // Whether all of [offset, offset + bytes) is there and free.
  bool IsFree(uint64_t offset, uint64_t bytes) const;
  // [offset, offset + bytes) must be free.
  void AllocateAt(uint64_t offset, uint64_t bytes, OwnerId owner);
  // Frees the extent that begins at `offset`.
  void Free(uint64_t offset);

  // The run of free and evictable extents that fits `bytes` and whose victims
  // are worth least. `tail_bytes` could be grown at the end: a hole may reach
  // that far beyond bytes(). nullopt: nothing would help.
  std::optional<Hole> CheapestHole(uint64_t bytes, uint64_t tail_bytes,
                                   KeepValueFn value) const;

  // Who is to leave so that `bytes` are free in sum, wherever they lie: what is
  // worth least a byte. nullopt: that could not be.
  std::optional<std::vector<OwnerId>> CheapestRoom(uint64_t bytes,
                                                   KeepValueFn value) const;

  uint64_t bytes() const { return bytes_; }
  uint64_t used() const { return used_; }
  uint64_t largest_free() const;
  uint64_t trailing_free() const;
  // That the blocks tile the range, neighbours that are free are one, and the
  // totals are theirs; what is not so is our bug. For tests: looks at each.
  void CheckTotals() const;
  // Of what ends behind `offset`, in address order.
  std::vector<OwnerId> OwnersFrom(uint64_t offset) const;

 private:
  struct Block {
    uint64_t bytes = 0;
    std::optional<OwnerId> owner;  // nullopt: free.
  };
  using Blocks = std::map<uint64_t, Block>;

  void Occupy(Blocks::iterator block, uint64_t bytes, OwnerId owner);
  // Free blocks come and go, and change their size, through these alone.
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
