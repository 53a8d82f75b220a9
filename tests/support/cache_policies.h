// What caches of whole groups miss on an order that repeats: the yardsticks
// beside a plan's traffic.
#ifndef HOIST_TESTS_SUPPORT_CACHE_POLICIES_H_
#define HOIST_TESTS_SUPPORT_CACHE_POLICIES_H_

#include <cstdint>
#include <optional>
#include <vector>

namespace hoistd {

struct CacheProblem {
  std::vector<uint64_t> bytes;  // Of each group; none is 0.
  std::vector<uint32_t> order;  // One pass: indices into `bytes`.
  uint64_t capacity_bytes = 0;
  // Passes that are counted, after as many that only warm the cache up.
  uint32_t passes = 8;
};

enum class CachePolicy {
  kLru,  // Evicts what was used longest ago.
  // Belady's MIN: evicts what is used again last. The fewest misses of any
  // demand policy if groups are of one size; a good one otherwise.
  kMin,
};

// Bytes that are loaded in a pass on average, when a group is loaded once it is
// used and not there, and groups are evicted until it fits. nullopt: a group is
// larger than the capacity, or the problem is empty.
std::optional<double> MissedBytesPerPass(const CacheProblem& problem,
                                         CachePolicy policy);

}  // namespace hoistd

#endif  // HOIST_TESTS_SUPPORT_CACHE_POLICIES_H_
