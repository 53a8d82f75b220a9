#include "tests/support/cache_policies.h"

#include <cstddef>
#include <set>
#include <utility>

namespace hoistd {
namespace {

// By step of one pass: how many steps later its group is used again.
std::vector<uint64_t> StepsUntilNextUse(const CacheProblem& problem) {
  const size_t length = problem.order.size();
  std::vector<uint64_t> until(length);
  std::vector<size_t> next(problem.bytes.size());
  for (size_t step = 2 * length; step-- > 0;) {
    const uint32_t group = problem.order[step % length];
    // The later of the two passes only says where each group comes first.
    if (step < length) until[step] = next[group] - step;
    next[group] = step;
  }
  return until;
}

// Groups in the cache, in the order in which they would go.
class Cache {
 public:
  explicit Cache(size_t groups) : ranks_(groups) {}

  bool Contains(uint32_t group) const { return ranks_[group].has_value(); }
  void Put(uint32_t group, uint64_t rank) {
    Remove(group);
    ranks_[group] = rank;
    by_rank_.emplace(rank, group);
  }
  uint32_t RemoveFirst() {
    const uint32_t group = by_rank_.begin()->second;
    Remove(group);
    return group;
  }

 private:
  void Remove(uint32_t group) {
    if (!ranks_[group].has_value()) return;
    by_rank_.erase({*ranks_[group], group});
    ranks_[group].reset();
  }

  std::vector<std::optional<uint64_t>> ranks_;
  std::set<std::pair<uint64_t, uint32_t>> by_rank_;
};

}  // namespace

std::optional<double> MissedBytesPerPass(const CacheProblem& problem,
                                         CachePolicy policy) {
  if (problem.order.empty() || problem.passes == 0) return std::nullopt;
  for (const uint32_t group : problem.order) {
    if (problem.bytes[group] > problem.capacity_bytes) return std::nullopt;
  }
  const std::vector<uint64_t> until = StepsUntilNextUse(problem);
  const uint64_t length = problem.order.size();
  const uint64_t warm = length * problem.passes;
  Cache cache(problem.bytes.size());
  uint64_t used = 0;
  uint64_t missed = 0;
  for (uint64_t step = 0; step < 2 * warm; ++step) {
    const uint32_t group = problem.order[step % length];
    const uint64_t bytes = problem.bytes[group];
    if (!cache.Contains(group)) {
      if (step >= warm) missed += bytes;
      while (used + bytes > problem.capacity_bytes) {
        used -= problem.bytes[cache.RemoveFirst()];
      }
      used += bytes;
    }
    // Lower ranks go first: old uses, or far ones.
    cache.Put(group, policy == CachePolicy::kLru
                         ? step
                         : ~uint64_t{0} - (step + until[step % length]));
  }
  return static_cast<double>(missed) / problem.passes;
}

}  // namespace hoistd
