// Which sums a growing list of whole numbers can make, and of what.
#ifndef HOIST_DAEMON_PLAN_SUBSET_SUM_H_
#define HOIST_DAEMON_PLAN_SUBSET_SUM_H_

#include <cstddef>
#include <cstdint>
#include <vector>

namespace hoistd {

// Threads: one at a time.
// Bounds:  4 bytes and a bit for each sum up to the limit; Add costs a 64th of
//          the limit, plus once for each sum that becomes reachable.
class SubsetSums {
 public:
  explicit SubsetSums(uint64_t limit);

  // Items are numbered from 0 in the order in which they are added; none is 0.
  void Add(uint64_t item);

  // The largest sum of items so far, each used at most once, that is at most
  // `limit`; 0 is the sum of none.
  uint64_t LargestUpTo(uint64_t limit) const;

  // Numbers of items that make `sum`, which LargestUpTo returned at some time.
  // Items that were added later are not among them.
  std::vector<uint32_t> ItemsOf(uint64_t sum) const;

 private:
  const uint64_t limit_;
  std::vector<uint64_t> items_;
  std::vector<uint64_t> reachable_;  // A bit a sum.
  // The item that first made a sum reachable: what is left of the sum without
  // it was reachable before, so a walk along these uses no item twice.
  std::vector<uint32_t> made_by_;
};

}  // namespace hoistd

#endif  // HOIST_DAEMON_PLAN_SUBSET_SUM_H_
