#include "daemon/plan/subset_sum.h"

#include <algorithm>
#include <random>
#include <set>
#include <vector>

#include "gmock/gmock.h"
#include "gtest/gtest.h"

namespace hoistd::subset_sum_test {

using ::testing::IsEmpty;

TEST(SubsetSums, NothingMakesZero) {
  const SubsetSums sums(1000);
  EXPECT_EQ(sums.LargestUpTo(1000), 0u);
  EXPECT_THAT(sums.ItemsOf(0), IsEmpty());
}

TEST(SubsetSums, AnItemCountsOnce) {
  SubsetSums sums(1000);
  sums.Add(64);
  EXPECT_EQ(sums.LargestUpTo(1000), 64u);
  EXPECT_EQ(sums.LargestUpTo(63), 0u);
  sums.Add(1);
  EXPECT_EQ(sums.LargestUpTo(1000), 65u);
}

TEST(SubsetSums, ItemsAboveTheLimitAreOfNoUse) {
  SubsetSums sums(100);
  sums.Add(101);
  sums.Add(5000);
  EXPECT_EQ(sums.LargestUpTo(~uint64_t{0}), 0u);
}

TEST(SubsetSums, AgreesWithTheSetOfAllSums) {
  const uint64_t seed = 7;
  SCOPED_TRACE(seed);
  std::mt19937_64 random(seed);
  for (int round = 0; round < 200; ++round) {
    const uint64_t limit = random() % 400;
    SubsetSums sums(limit);
    std::set<uint64_t> all = {0};
    std::vector<uint64_t> items;
    for (int i = 0; i < 12; ++i) {
      items.push_back(1 + random() % 90);
      sums.Add(items.back());
      const std::set<uint64_t> before = all;
      for (const uint64_t sum : before) all.insert(sum + items.back());
      const uint64_t up_to = random() % (limit + 1);
      const uint64_t best = sums.LargestUpTo(up_to);
      ASSERT_EQ(best, *std::prev(all.upper_bound(up_to)));
      std::vector<uint32_t> chosen = sums.ItemsOf(best);
      uint64_t sum = 0;
      for (const uint32_t item : chosen) sum += items.at(item);
      ASSERT_EQ(sum, best);
      std::sort(chosen.begin(), chosen.end());
      ASSERT_EQ(std::adjacent_find(chosen.begin(), chosen.end()), chosen.end());
    }
  }
}

}  // namespace hoistd::subset_sum_test
