#include "tests/support/cache_policies.h"

#include <algorithm>
#include <limits>
#include <numeric>
#include <random>
#include <vector>

#include "gmock/gmock.h"
#include "gtest/gtest.h"

namespace hoistd::cache_policies_test {

CacheProblem Cyclic(size_t groups, uint64_t bytes, uint64_t capacity) {
  CacheProblem problem = {std::vector<uint64_t>(groups, bytes), {}, capacity};
  problem.order.resize(groups);
  std::iota(problem.order.begin(), problem.order.end(), 0u);
  return problem;
}

// The fewest misses of a whole run, from every choice of what goes.
uint64_t FewestMisses(const std::vector<uint32_t>& run, size_t step,
                      uint32_t cached, int room) {
  while (step < run.size() && (cached >> run[step] & 1) != 0) ++step;
  if (step == run.size()) return 0;
  const uint32_t with = cached | 1u << run[step];
  if (room > 0) return 1 + FewestMisses(run, step + 1, with, room - 1);
  uint64_t best = std::numeric_limits<uint64_t>::max();
  for (uint32_t group = 0; cached >> group != 0; ++group) {
    if ((cached >> group & 1) == 0) continue;
    best = std::min(
        best, 1 + FewestMisses(run, step + 1, with & ~(1u << group), room));
  }
  return best;
}

TEST(CachePolicies, WhatFitsIsNeverMissed) {
  for (const CachePolicy policy : {CachePolicy::kLru, CachePolicy::kMin}) {
    EXPECT_EQ(MissedBytesPerPass(Cyclic(5, 10, 50), policy), 0.0);
  }
}

TEST(CachePolicies, LruMissesAllOfACycleThatIsOneTooLong) {
  EXPECT_EQ(MissedBytesPerPass(Cyclic(6, 10, 50), CachePolicy::kLru), 60.0);
}

TEST(CachePolicies, MinKeepsAllButOneOnACycle) {
  // Of n groups in c places, (n - c) / (n - 1) of the uses miss.
  CacheProblem problem = Cyclic(6, 10, 50);
  problem.passes = 5;
  EXPECT_EQ(MissedBytesPerPass(problem, CachePolicy::kMin), 12.0);
  problem = Cyclic(11, 10, 30);
  problem.passes = 10;
  EXPECT_EQ(MissedBytesPerPass(problem, CachePolicy::kMin), 88.0);
}

TEST(CachePolicies, AGroupThatCannotFitHasNoAnswer) {
  EXPECT_EQ(MissedBytesPerPass(Cyclic(2, 10, 9), CachePolicy::kLru),
            std::nullopt);
  EXPECT_EQ(MissedBytesPerPass({}, CachePolicy::kMin), std::nullopt);
}

TEST(CachePolicies, MinIsTheLeastOfAllChoicesOnEqualGroups) {
  const uint64_t seed = 3;
  SCOPED_TRACE(seed);
  std::mt19937_64 random(seed);
  for (int round = 0; round < 60; ++round) {
    const size_t groups = 2 + random() % 4;
    const int places = 1 + static_cast<int>(random() % groups);
    CacheProblem problem = Cyclic(groups, 1, static_cast<uint64_t>(places));
    problem.order.push_back(static_cast<uint32_t>(random() % groups));
    std::shuffle(problem.order.begin(), problem.order.end(), random);
    problem.passes = 1;  // The second, after one from a cold start.
    const double counted = *MissedBytesPerPass(problem, CachePolicy::kMin);
    EXPECT_LE(counted, *MissedBytesPerPass(problem, CachePolicy::kLru));
    // MIN is the best for each prefix of what is to come, so it is for both
    // passes and for the first.
    std::vector<uint32_t> run = problem.order;
    run.insert(run.end(), problem.order.begin(), problem.order.end());
    EXPECT_EQ(counted,
              static_cast<double>(FewestMisses(run, 0, 0, places) -
                                  FewestMisses(problem.order, 0, 0, places)));
  }
}

}  // namespace hoistd::cache_policies_test
