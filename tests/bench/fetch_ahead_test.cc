#include "tests/bench/fetch_ahead.h"

#include <gtest/gtest.h>

#include <vector>

namespace hoist::bench {
namespace {

// An expert takes 4 s to copy, in two pieces, and 8 s to read in place.
FetchTimes Times(double attention) {
  return {.attention = attention,
          .experts = 1,
          .expert_bytes = 4000,
          .piece_bytes = 2000,
          .link = 1000,
          .in_place = 500,
          .copy_share = 0.5};
}

FetchResult Fetch(double attention, const std::vector<FetchLayer>& layers,
                  size_t places = 8) {
  return FetchAhead(layers, Times(attention), places);
}

TEST(FetchAhead, WhatIsNotForeseenIsReadInPlace) {
  const FetchResult result = Fetch(10, {{{7, 8}, {}, 0}});
  EXPECT_DOUBLE_EQ(result.seconds, 10 + 2 * 8 + 1);
  EXPECT_DOUBLE_EQ(result.in_place_bytes, 8000);
  EXPECT_EQ(result.places, 0u);
}

TEST(FetchAhead, CopiesHideBehindAttention) {
  const FetchResult result = Fetch(10, {{{7, 8}, {8, 7}, 0}});
  EXPECT_DOUBLE_EQ(result.seconds, 10 + 1);
  EXPECT_DOUBLE_EQ(result.used_bytes, 8000);
  EXPECT_DOUBLE_EQ(result.in_place_bytes, 0);
  EXPECT_EQ(result.places, 2u);
}

TEST(FetchAhead, LateCopyIsReadInPlaceOrAwaited) {
  const std::vector<FetchLayer> layers = {{{7}, {7}, 0}};
  // For 2 s the read has half of the link.
  const FetchResult late = Fetch(3, layers);
  EXPECT_DOUBLE_EQ(late.seconds, 3 + (2 + 7) + 1);
  EXPECT_DOUBLE_EQ(late.in_place_bytes, 4000);
  EXPECT_DOUBLE_EQ(late.wasted_bytes, 4000);

  FetchTimes times = Times(3);
  times.waits = true;
  const FetchResult awaited = FetchAhead(layers, times);
  EXPECT_DOUBLE_EQ(awaited.seconds, 3 + 1 + 1);
  EXPECT_DOUBLE_EQ(awaited.used_bytes, 4000);
  EXPECT_DOUBLE_EQ(awaited.wasted_bytes, 0);
}

TEST(FetchAhead, CopyThatHasNotStartedIsReadInPlace) {
  const FetchResult result = Fetch(4, {{{7, 8}, {7, 8}, 0}});
  EXPECT_DOUBLE_EQ(result.seconds, 4 + 8 + 1);
  EXPECT_DOUBLE_EQ(result.used_bytes, 4000);
  EXPECT_DOUBLE_EQ(result.in_place_bytes, 4000);
}

TEST(FetchAhead, WrongCopyEndsWithItsPiece) {
  const FetchResult late = Fetch(3, {{{7}, {9}, 0}});
  EXPECT_DOUBLE_EQ(late.seconds, 3 + (2 + 7) + 1);
  EXPECT_DOUBLE_EQ(late.wasted_bytes, 4000);

  const FetchResult early = Fetch(1, {{{7}, {9}, 0}});
  EXPECT_DOUBLE_EQ(early.seconds, 1 + (2 + 7) + 1);
  EXPECT_DOUBLE_EQ(early.wasted_bytes, 2000);
}

TEST(FetchAhead, LayerEarlierHidesMore) {
  const FetchLayer nothing = {{}, {}, 0};
  EXPECT_DOUBLE_EQ(Fetch(2, {nothing, {{7}, {7}, 1}}).seconds, 3 + 2 + 8 + 1);
  EXPECT_DOUBLE_EQ(Fetch(2, {nothing, {{7}, {7}, 0}}).seconds, 3 + 2 + 1);
}

TEST(FetchAhead, NoCopyStartsBesideAReadInPlace) {
  // 2 s of copying before the read, 1 s after it, 1 s in the next layer.
  const FetchResult result = Fetch(2, {{{1}, {}, 0}, {{7}, {7}, 0}});
  EXPECT_DOUBLE_EQ(result.seconds, (2 + 8 + 1) + (2 + 1));
  EXPECT_DOUBLE_EQ(result.in_place_bytes, 4000);
}

TEST(FetchAhead, CopiesStopWhereFewGuessesAreRightUntilTheyAre) {
  std::vector<FetchLayer> layers;
  for (size_t i = 0; i < 40; ++i) layers.push_back({{7}, {9}, i});
  EXPECT_DOUBLE_EQ(Fetch(4, layers).wasted_bytes, 40 * 4000);

  FetchTimes times = Times(4);
  times.least_right = 0.5;
  EXPECT_DOUBLE_EQ(FetchAhead(layers, times).wasted_bytes, 4000);
  // The first 10 are wrong, and the next 10 make up for them.
  for (size_t i = 10; i < 40; ++i) layers[i].foreseen = {7};
  const FetchResult late = FetchAhead(layers, times);
  EXPECT_DOUBLE_EQ(late.wasted_bytes, 4000);
  EXPECT_GE(late.used_bytes, 20 * 4000);
  EXPECT_LE(late.used_bytes, 22 * 4000);
  for (FetchLayer& layer : layers) layer.foreseen = {7};
  EXPECT_DOUBLE_EQ(FetchAhead(layers, times).used_bytes, 40 * 4000);
}

TEST(FetchAhead, PlaceIsFreeAfterItsLayer) {
  EXPECT_DOUBLE_EQ(Fetch(8, {{{7, 8}, {7, 8}, 0}}, 1).seconds, 8 + 8 + 1);

  const FetchResult result = Fetch(4, {{{7}, {7}, 0}, {{8}, {8}, 0}}, 1);
  EXPECT_DOUBLE_EQ(result.seconds, 2 * (4 + 1));
  EXPECT_DOUBLE_EQ(result.used_bytes, 8000);
  EXPECT_EQ(result.places, 1u);
}

}  // namespace
}  // namespace hoist::bench
