// Reachable subset sums of a growing list of integers, and their items.
#ifndef HOIST_DAEMON_PLAN_SUBSET_SUM_H_
#define HOIST_DAEMON_PLAN_SUBSET_SUM_H_

#include <cstddef>
#include <cstdint>
#include <vector>

namespace hoistd {

// Threads: one at a time.
// Bounds:  4 bytes and a bit per sum up to the limit; Add costs a 64th of the
//          limit, plus one step per newly reachable sum.
class SubsetSums {
 public:
  explicit SubsetSums(uint64_t limit);

  // Items are numbered from 0 in the order of Add; none is 0.
  void Add(uint64_t item);

  // The largest sum of distinct items so far that is at most `limit`; 0: the
  // empty sum.
  uint64_t LargestUpTo(uint64_t limit) const;

  // Item numbers that sum to `sum`, an earlier result of LargestUpTo. Later
  // items are not among them.
  std::vector<uint32_t> ItemsOf(uint64_t sum) const;

 private:
  const uint64_t limit_;
  std::vector<uint64_t> items_;
  std::vector<uint64_t> reachable_;  // One bit per sum.
  // The item that first made a sum reachable: the remainder was reachable
  // before it, so a walk along these uses no item twice.
  std::vector<uint32_t> made_by_;
};

}  // namespace hoistd

#endif  // HOIST_DAEMON_PLAN_SUBSET_SUM_H_
