#include "client/src/device/arena_ranges.h"

#include <map>
#include <random>
#include <string>

#include "gmock/gmock.h"
#include "gtest/gtest.h"

namespace hoist::arena_ranges_test {

using ::testing::IsEmpty;
using ::testing::SizeIs;

constexpr uint64_t kUnit = ArenaRanges::kAlignment;
constexpr ArenaRanges::Stream kOut = 1, kIn = 2, kCompute = 3;

ArenaRanges::Mark NewMark() { return std::make_shared<int>(); }

std::vector<const void*> MarksOf(const std::vector<ArenaRanges::Use>& uses) {
  std::vector<const void*> marks;
  for (const ArenaRanges::Use& use : uses) marks.push_back(use.mark.get());
  return marks;
}

TEST(ArenaRanges, TakesTheSmallestThatFitsAndTheFirstOfThose) {
  ArenaRanges ranges(10 * kUnit);
  // A hole of three and one of two, each behind a block; the rest is taken.
  const uint64_t three = ranges.Take(3 * kUnit, kOut)->offset;
  ranges.Take(kUnit, kOut);
  const uint64_t two = ranges.Take(2 * kUnit, kOut)->offset;
  ranges.Take(4 * kUnit, kOut);
  ASSERT_TRUE(ranges.Give(three, {}));
  ASSERT_TRUE(ranges.Give(two, {}));
  EXPECT_EQ(ranges.largest_free(), 3 * kUnit);
  EXPECT_EQ(ranges.Take(2 * kUnit, kOut)->offset, two);
  EXPECT_EQ(ranges.Take(kUnit, kOut)->offset, three);
  EXPECT_FALSE(ranges.Take(3 * kUnit, kOut).has_value());
}

TEST(ArenaRanges, SizesAreRoundedUpAndNoBytesTakeAPlaceOfTheirOwn) {
  ArenaRanges ranges(2 * kUnit);
  const auto none = ranges.Take(0, kOut);
  ASSERT_TRUE(none.has_value());
  EXPECT_EQ(none->bytes, kUnit);
  EXPECT_EQ(ranges.Take(1, kOut)->offset, kUnit);
  EXPECT_FALSE(ranges.Take(0, kOut).has_value());
  EXPECT_FALSE(ranges.Take(UINT64_MAX, kOut).has_value());
  EXPECT_EQ(ranges.used(), 2 * kUnit);
  EXPECT_EQ(ranges.blocks(), 2u);
}

TEST(ArenaRanges, WhatIsNotTakenCannotBeGiven) {
  ArenaRanges ranges(2 * kUnit);
  EXPECT_FALSE(ranges.Give(0, {}));
  ranges.Take(kUnit, kOut);
  EXPECT_FALSE(ranges.Give(kUnit / 2, {}));
  EXPECT_TRUE(ranges.Give(0, {}));
  EXPECT_FALSE(ranges.Give(0, {}));
}

TEST(ArenaRanges, NeighboursGrowTogether) {
  ArenaRanges ranges(3 * kUnit);
  for (int i = 0; i < 3; ++i) ranges.Take(kUnit, kOut);
  ranges.Give(0, {});
  ranges.Give(2 * kUnit, {});
  EXPECT_EQ(ranges.largest_free(), kUnit);
  ranges.Give(kUnit, {});
  EXPECT_EQ(ranges.largest_free(), 3 * kUnit);
}

TEST(ArenaRanges, AnotherStreamWaitsForTheLastUseTheSameDoesNot) {
  ArenaRanges ranges(kUnit);
  const ArenaRanges::Mark last = NewMark();
  ranges.Take(kUnit, kOut);
  ranges.Give(0, {{kIn, last}});
  const auto same = ranges.Take(kUnit, kIn);
  EXPECT_THAT(same->after, IsEmpty());
  ranges.Give(0, {{kIn, last}});
  const auto other = ranges.Take(kUnit, kOut);
  EXPECT_THAT(MarksOf(other->after), ::testing::ElementsAre(last.get()));
}

TEST(ArenaRanges, ARangeRemembersOfEachStreamTheLastUseAlone) {
  ArenaRanges ranges(3 * kUnit);
  for (int i = 0; i < 3; ++i) ranges.Take(kUnit, kOut);
  const ArenaRanges::Mark first = NewMark(), second = NewMark(),
                          other = NewMark();
  ranges.Give(2 * kUnit, {{kIn, first}});
  ranges.Give(0, {{kIn, second}});
  ranges.Give(kUnit, {{kCompute, other}});
  EXPECT_EQ(first.use_count(), 1);  // The later one stands for it.
  // What is left of a range that was cut keeps them all.
  EXPECT_THAT(ranges.Take(kUnit, kOut)->after, SizeIs(2));
  EXPECT_THAT(MarksOf(ranges.Take(2 * kUnit, kCompute)->after),
              ::testing::ElementsAre(second.get()));
}

// Against a model that knows of each unit who has it, and all of its uses.
TEST(ArenaRanges, IsRightInRandomOrders) {
  constexpr uint64_t kUnits = 40;
  for (uint32_t seed = 0; seed < 50; ++seed) {
    SCOPED_TRACE("seed " + std::to_string(seed));
    std::mt19937 random(seed);
    const auto below = [&](uint64_t bound) { return random() % bound; };
    ArenaRanges ranges(kUnits * kUnit);
    std::map<uint64_t, uint64_t> blocks;  // Units, by first unit.
    // Of each unit, the last use by each stream, as a time.
    std::vector<std::map<ArenaRanges::Stream, int>> used(kUnits);
    std::map<const void*, int> times;
    std::vector<ArenaRanges::Mark> marks;
    for (int step = 0; step < 600; ++step) {
      const ArenaRanges::Stream stream = 1 + below(3);
      if (below(2) == 0 || blocks.empty()) {
        const uint64_t units = 1 + below(8);
        uint64_t longest = 0, run = 0;
        for (uint64_t unit = 0; unit < kUnits; ++unit) {
          const auto block = blocks.upper_bound(unit);
          const bool is_taken =
              block != blocks.begin() &&
              unit < std::prev(block)->first + std::prev(block)->second;
          run = is_taken ? 0 : run + 1;
          longest = std::max(longest, run);
        }
        ASSERT_EQ(ranges.largest_free(), longest * kUnit);
        const auto taken = ranges.Take(units * kUnit - below(kUnit), stream);
        ASSERT_EQ(taken.has_value(), units <= longest);
        if (!taken.has_value()) continue;
        const uint64_t first = taken->offset / kUnit;
        const auto next = blocks.lower_bound(first);
        ASSERT_TRUE(next == blocks.end() || first + units <= next->first);
        if (next != blocks.begin()) {
          const auto before = std::prev(next);
          ASSERT_LE(before->first + before->second, first);
        }
        blocks[first] = units;
        // Whatever anybody else last did there is waited for.
        for (uint64_t unit = first; unit < first + units; ++unit) {
          for (const auto& [of, time] : used[unit]) {
            if (of == stream) continue;
            bool covered = false;
            for (const ArenaRanges::Use& use : taken->after) {
              covered = covered ||
                        (use.stream == of && times.at(use.mark.get()) >= time);
            }
            ASSERT_TRUE(covered) << "unit " << unit << " of stream " << of;
          }
          used[unit].clear();
        }
        for (const ArenaRanges::Use& use : taken->after) {
          ASSERT_NE(use.stream, stream);
        }
        continue;
      }
      auto block = blocks.begin();
      std::advance(block, static_cast<long>(below(blocks.size())));
      marks.push_back(NewMark());
      times[marks.back().get()] = step;
      ASSERT_TRUE(ranges.Give(block->first * kUnit, {{stream, marks.back()}}));
      for (uint64_t i = 0; i < block->second; ++i) {
        used[block->first + i] = {{stream, step}};
      }
      blocks.erase(block);
    }
    uint64_t taken = 0;
    for (const auto& [first, units] : blocks) taken += units * kUnit;
    EXPECT_EQ(ranges.used(), taken);
    EXPECT_EQ(ranges.blocks(), blocks.size());
  }
}

}  // namespace hoist::arena_ranges_test
