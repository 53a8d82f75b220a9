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
  // In reads of all its bytes, whatever they are.
  std::vector<HotPiece> pieces = {
      {.bytes = 10, .heat = 100, .hot = true},
      {.bytes = 10, .heat = 100 + 10 * (kStays - 0.1)}};
  EXPECT_THAT(ChooseHot(pieces, 10), ElementsAre(true, false));
  pieces[1].heat = 100 + 10 * (kStays + 0.1);
  EXPECT_THAT(ChooseHot(pieces, 10), ElementsAre(false, true));
  // Then it is the other's turn to stay.
  pieces[0].hot = false;
  pieces[1].hot = true;
  pieces[0].heat = pieces[1].heat + 10 * (kStays - 0.1);
  EXPECT_THAT(ChooseHot(pieces, 10), ElementsAre(false, true));
}

TEST(ChooseHot, WhatWasNeverReadGivesWayToTheFirstThatIs) {
  const std::vector<HotPiece> pieces = {{.bytes = 10, .hot = true},
                                        {.bytes = 10, .heat = 0.5}};
  EXPECT_THAT(ChooseHot(pieces, 10), ElementsAre(false, true));
}

// What an exchange costs, it would have saved before.
TEST(ChooseHot, ExchangesCostNoMoreThanTheySaveWhateverIsRead) {
  constexpr size_t kPieces = 64, kHot = 24;
  std::mt19937 random(5);
  for (const uint32_t changes : {0u, 8u, 64u}) {
    Heat heat(kPieces);
    std::vector<HotPiece> pieces(kPieces, {.bytes = 1});
    for (size_t i = 0; i < kHot; ++i) pieces[i].hot = true;
    double saved = 0, exchanges = 0;
    for (int pass = 0; pass < 5'000; ++pass) {
      std::vector<double> read(kPieces, 0);
      const uint32_t shift = changes == 0 ? 0 : pass / changes;
      for (int i = 0; i < 12; ++i) {
        read[(random() % 8 * (random() % 8) + shift) % kPieces] = 1;
      }
      // Beside the pieces that were hot at first.
      for (size_t i = 0; i < kPieces; ++i) {
        saved += read[i] * ((pieces[i].hot ? 1 : 0) - (i < kHot ? 1 : 0));
      }
      heat.Add(read, 1);
      for (size_t i = 0; i < kPieces; ++i) pieces[i].heat = heat.Of(i);
      const std::vector<bool> hot = ChooseHot(pieces, kHot);
      for (size_t i = 0; i < kPieces; ++i) {
        exchanges += hot[i] && !pieces[i].hot ? 1 : 0;
        pieces[i].hot = hot[i];
      }
    }
    EXPECT_GT(exchanges, 0) << changes;
    EXPECT_LE(exchanges, saved) << changes;
  }
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

TEST(Heat, IsWhatPassesReadAndTheirMean) {
  Heat heat(2);
  EXPECT_EQ(heat.Of(0), 0);
  EXPECT_EQ(heat.OfAPass(0), 0);
  heat.Add(std::vector<double>{64, 0}, 2);
  EXPECT_DOUBLE_EQ(heat.Of(0), 64);
  EXPECT_DOUBLE_EQ(heat.OfAPass(0), 32);
  // The other tensors of a pass come later.
  heat.Add(std::vector<double>{0, 8}, 0);
  EXPECT_DOUBLE_EQ(heat.OfAPass(1), 4);
}

TEST(Heat, OlderPassesHalveOverTheHalfLife) {
  Heat heat(2);
  heat.Add(std::vector<double>{64 * Heat::kHalfLife, 0}, Heat::kHalfLife);
  EXPECT_DOUBLE_EQ(heat.OfAPass(0), 64);
  heat.Add(std::vector<double>{0, 96 * Heat::kHalfLife}, Heat::kHalfLife);
  EXPECT_DOUBLE_EQ(heat.Of(0), 64 * Heat::kHalfLife / 2);
  EXPECT_DOUBLE_EQ(heat.OfAPass(0), 64 * 0.5 / 1.5);
  EXPECT_DOUBLE_EQ(heat.OfAPass(1), 96 / 1.5);
}

TEST(Heat, StaysFiniteAndFollowsAChange) {
  Heat heat(2);
  for (int i = 0; i < 100'000; ++i) heat.Add(std::vector<double>{1000, 0}, 1);
  EXPECT_NEAR(heat.OfAPass(0), 1000, 1e-6);
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
  EXPECT_DOUBLE_EQ(heat.OfAPass(0), 4);
  EXPECT_DOUBLE_EQ(heat.OfAPass(1), 2);
  EXPECT_DOUBLE_EQ(heat.Of(0), 4 * Heat::kSeed);
  // Its own passes soon count more.
  heat.Add(std::vector<double>{0, 12 * Heat::kSeed}, Heat::kSeed);
  EXPECT_LT(heat.OfAPass(0), 2);
  EXPECT_GT(heat.OfAPass(1), 6);
}

}  // namespace hoist::hot_set_test
