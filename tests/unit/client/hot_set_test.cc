#include "client/src/in_place/hot_set.h"

#include <algorithm>
#include <cmath>
#include <cstdint>
#include <random>
#include <vector>

#include "gmock/gmock.h"
#include "gtest/gtest.h"

namespace hoist::hot_set_test {

using ::testing::Each;
using ::testing::ElementsAre;

uint64_t HotBytes(const std::vector<HotPiece>& pieces,
                  const std::vector<bool>& hot) {
  uint64_t bytes = 0;
  for (size_t i = 0; i < pieces.size(); ++i) {
    if (hot[i]) bytes += pieces[i].bytes;
  }
  return bytes;
}

TEST(ChooseHot, TakesTheMostHeatAByte) {
  const std::vector<HotPiece> pieces = {{.bytes = 10, .heat = 10},
                                        {.bytes = 10, .heat = 30},
                                        {.bytes = 20, .heat = 40},
                                        {.bytes = 10, .heat = 5}};
  EXPECT_THAT(ChooseHot(pieces, 30), ElementsAre(false, true, true, false));
  EXPECT_THAT(ChooseHot(pieces, 10), ElementsAre(false, true, false, false));
  EXPECT_THAT(ChooseHot(pieces, 50), Each(true));
}

TEST(ChooseHot, WithoutABudgetNothingIsHot) {
  const std::vector<HotPiece> pieces = {{.bytes = 10, .heat = 10, .hot = true}};
  EXPECT_THAT(ChooseHot(pieces, 0), ElementsAre(false));
  EXPECT_TRUE(ChooseHot({}, 100).empty());
}

TEST(ChooseHot, OneThatIsTooLargeLeavesItsRoomToOthers) {
  const std::vector<HotPiece> pieces = {{.bytes = 100, .heat = 1e9},
                                        {.bytes = 10, .heat = 1},
                                        {.bytes = 10, .heat = 2}};
  EXPECT_THAT(ChooseHot(pieces, 25), ElementsAre(false, true, true));
}

TEST(ChooseHot, PiecesOfNoBytesCostNothing) {
  const std::vector<HotPiece> pieces = {{.bytes = 0, .heat = 5},
                                        {.bytes = 10, .heat = 1},
                                        {.bytes = 0, .heat = 0}};
  EXPECT_TRUE(ChooseHot(pieces, 10)[1]);
}

TEST(ChooseHot, WhatIsHotStaysUnlessAnotherIsWorthMuchMore) {
  std::vector<HotPiece> pieces = {{.bytes = 10, .heat = 100, .hot = true},
                                  {.bytes = 10, .heat = 100 * kStays * 0.99}};
  EXPECT_THAT(ChooseHot(pieces, 10), ElementsAre(true, false));
  pieces[1].heat = 100 * kStays * 1.01;
  EXPECT_THAT(ChooseHot(pieces, 10), ElementsAre(false, true));
  // Then it is the other's turn to stay.
  pieces[0].hot = false;
  pieces[1].hot = true;
  pieces[0].heat = pieces[1].heat * kStays * 0.99;
  EXPECT_THAT(ChooseHot(pieces, 10), ElementsAre(false, true));
}

TEST(ChooseHot, EqualOnesDoNotTakeTurns) {
  std::vector<HotPiece> pieces(100, {.bytes = 10, .heat = 7});
  const std::vector<bool> first = ChooseHot(pieces, 300);
  for (size_t i = 0; i < pieces.size(); ++i) pieces[i].hot = first[i];
  EXPECT_EQ(ChooseHot(pieces, 300), first);
}

TEST(ChooseHot, EqualHeatSpreadsOverAllTensors) {
  // 48 tensors of 128 pieces each.
  constexpr size_t kTensors = 48, kEach = 128;
  const std::vector<HotPiece> pieces(kTensors * kEach, {.bytes = 1, .heat = 0});
  for (const size_t budget : {kTensors * 4, kTensors * kEach / 2}) {
    const std::vector<bool> hot = ChooseHot(pieces, budget);
    EXPECT_EQ(HotBytes(pieces, hot), budget);
    for (size_t t = 0; t < kTensors; ++t) {
      const auto from = hot.begin() + static_cast<ptrdiff_t>(t * kEach);
      const auto of_it =
          std::count(from, from + static_cast<ptrdiff_t>(kEach), true);
      const auto share = static_cast<double>(budget) / kTensors;
      EXPECT_NEAR(static_cast<double>(of_it), share, 2) << "tensor " << t;
    }
  }
}

TEST(ChooseHot, NoBudgetIsEverExceeded) {
  std::mt19937 random(15);
  for (int round = 0; round < 2000; ++round) {
    std::vector<HotPiece> pieces(random() % 40);
    uint64_t all = 0;
    for (HotPiece& piece : pieces) {
      piece.bytes = random() % 5 == 0 ? 0 : random() % 1000;
      piece.heat = random() % 3 == 0 ? 0 : random() % 100;
      piece.hot = random() % 2 == 0;
      all += piece.bytes;
    }
    const uint64_t budget =
        random() % 10 == 0 ? UINT64_MAX : random() % (all + 2);
    const std::vector<bool> hot = ChooseHot(pieces, budget);
    ASSERT_EQ(hot.size(), pieces.size());
    ASSERT_LE(HotBytes(pieces, hot), budget);
    if (budget >= all) {
      ASSERT_EQ(HotBytes(pieces, hot), all);
    }
    // Pure, and at rest where nothing changed: no second choice moves anything.
    ASSERT_EQ(ChooseHot(pieces, budget), hot);
    for (size_t i = 0; i < pieces.size(); ++i) pieces[i].hot = hot[i];
    std::vector<bool> last = hot;
    for (int again = 0; again < 3; ++again) {
      last = ChooseHot(pieces, budget);
      for (size_t i = 0; i < pieces.size(); ++i) pieces[i].hot = last[i];
    }
    ASSERT_EQ(ChooseHot(pieces, budget), last);
  }
}

TEST(Heat, IsTheMeanOfAPass) {
  Heat heat(2);
  EXPECT_EQ(heat.Of(0), 0);
  heat.Add(std::vector<double>{64, 0}, 1);
  EXPECT_DOUBLE_EQ(heat.Of(0), 64);
  // Many passes at once count as many.
  heat.Add(std::vector<double>{0, 8}, 0);
  EXPECT_DOUBLE_EQ(heat.Of(1), 8);
}

TEST(Heat, OlderPassesHalveOverTheHalfLife) {
  Heat heat(2);
  heat.Add(std::vector<double>{64 * Heat::kHalfLife, 0}, Heat::kHalfLife);
  EXPECT_DOUBLE_EQ(heat.Of(0), 64);
  heat.Add(std::vector<double>{0, 96 * Heat::kHalfLife}, Heat::kHalfLife);
  EXPECT_DOUBLE_EQ(heat.Of(0), 64 * 0.5 / 1.5);
  EXPECT_DOUBLE_EQ(heat.Of(1), 96 / 1.5);
}

TEST(Heat, StaysFiniteAndFollowsAChange) {
  Heat heat(2);
  for (int i = 0; i < 100'000; ++i) heat.Add(std::vector<double>{1000, 0}, 1);
  EXPECT_NEAR(heat.Of(0), 1000, 1e-6);
  int passes = 0;
  while (heat.Of(1) <= heat.Of(0)) {
    heat.Add(std::vector<double>{0, 1000}, 1);
    ++passes;
  }
  EXPECT_LE(passes, Heat::kHalfLife + 1);
}

TEST(Heat, ASeedStandsForAFewPasses) {
  Heat heat(2);
  heat.Seed(std::vector<double>{4, 2});
  EXPECT_DOUBLE_EQ(heat.Of(0), 4);
  EXPECT_DOUBLE_EQ(heat.Of(1), 2);
  // Its own passes soon count more.
  heat.Add(std::vector<double>{0, 12 * Heat::kSeed}, Heat::kSeed);
  EXPECT_LT(heat.Of(0), 2);
  EXPECT_GT(heat.Of(1), 6);
}

}  // namespace hoist::hot_set_test
