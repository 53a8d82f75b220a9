// Misses of whole-group caches on a repeated order: yardsticks for a plan's
// traffic.
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
  // Measured passes, after as many for warm-up.
  uint32_t passes = 8;
};

enum class CachePolicy {
  kLru,  // Evicts what was used longest ago.
  // Belady's MIN: evicts the group used again last. Of all demand policies the
  // fewest misses if groups are of one size; a good one otherwise.
  kMin,
};

// Mean bytes loaded per pass, if a group is loaded on a miss, and groups are
// evicted until it fits. nullopt: a group is larger than the capacity, or the
// problem is empty.
std::optional<double> MissedBytesPerPass(const CacheProblem& problem,
                                         CachePolicy policy);

}  // namespace hoistd

#endif  // HOIST_TESTS_SUPPORT_CACHE_POLICIES_H_
