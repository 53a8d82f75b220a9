// Whose turn it is on the link.
#include "daemon/plan/link_share.h"

#include <algorithm>
#include <map>
#include <random>
#include <utility>
#include <vector>

#include "gtest/gtest.h"

namespace hoistd::link_share_test {

constexpr uint64_t kPiece = uint64_t{32} << 20;
constexpr LinkParty kA = LinkParty::Of(PlanId(1));
constexpr LinkParty kB = LinkParty::Of(PlanId(2));
constexpr LinkParty kC = LinkParty::Of(PlanId(3));

absl::Time At(double seconds) {
  return absl::UnixEpoch() + absl::Seconds(seconds);
}

ShareOptions Weight(uint32_t weight, int32_t priority = 0) {
  ShareOptions options;
  options.weight = weight;
  options.priority = priority;
  return options;
}

ShareOptions Cap(uint64_t bytes_per_second, int32_t priority = 0) {
  ShareOptions options;
  options.max_bytes_per_second = bytes_per_second;
  options.priority = priority;
  return options;
}

// Copies `pieces` pieces of whoever's turn it is; bytes by plan.
std::map<LinkParty, uint64_t> CopyPieces(LinkShare& share,
                                         std::vector<LinkParty> ready,
                                         int pieces, uint64_t bytes = kPiece) {
  std::map<LinkParty, uint64_t> copied;
  for (int i = 0; i < pieces; ++i) {
    const auto plan = share.Pick(ready, At(0));
    if (!plan) break;
    share.Charge(*plan, bytes, At(0));
    copied[*plan] += bytes;
  }
  return copied;
}

TEST(LinkShare, BytesAreSharedByWeight) {
  LinkShare share;
  share.Add(kA, Weight(1));
  share.Add(kB, Weight(2));
  share.Add(kC, Weight(4));
  std::map<LinkParty, uint64_t> pieces;
  for (uint64_t i = 1; i <= 70'000; ++i) {
    const LinkParty plan = share.Pick({kA, kB, kC}, At(0)).value();
    share.Charge(plan, kPiece, At(0));
    ++pieces[plan];
    // Never two pieces off, and exact whenever it can be.
    for (const auto& [id, weight] :
         {std::pair(kA, 1.0), std::pair(kB, 2.0), std::pair(kC, 4.0)}) {
      const double fair = double(i) * weight / 7;
      ASSERT_NEAR(double(pieces[id]), fair, i % 7 == 0 ? 0 : 2)
          << "plan " << id.plan.number() << " after " << i << " pieces";
    }
  }
}

TEST(LinkShare, BytesCountAndNotTurns) {
  LinkShare share;
  share.Add(kA, Weight(1));
  share.Add(kB, Weight(1));
  std::mt19937 random(7);
  uint64_t a = 0;
  uint64_t b = 0;
  for (int i = 0; i < 10'000; ++i) {
    const LinkParty plan = share.Pick({kA, kB}, At(0)).value();
    const uint64_t bytes = plan == kA ? kPiece : 4096 + random() % 1'000'000;
    share.Charge(plan, bytes, At(0));
    (plan == kA ? a : b) += bytes;
    ASSERT_LE(std::max(a, b) - std::min(a, b), 2 * kPiece);
  }
  EXPECT_GT(a, 100 * kPiece);
}

TEST(LinkShare, SharesStayExactOverPetabytes) {
  LinkShare share;
  share.Add(kA, Weight(ShareOptions::kMaxWeight));
  share.Add(kB, Weight(1));
  // Virtual time goes where a double no longer tells 4 KiB / 1000 from 0.
  share.Charge(kB, uint64_t{1} << 62, At(0));
  share.Charge(kA, uint64_t{1} << 62, At(0));
  share.Remove(kB);
  share.Charge(kA, 4096, At(0));
  share.Add(kB, Weight(1));
  auto copied = CopyPieces(share, {kA, kB}, 10 * 1001, 4096);
  EXPECT_NEAR(double(copied[kA]), 10 * 1000 * 4096.0, 4 * 1000 * 4096.0);
  // Whatever the beginning owed is settled by now.
  copied = CopyPieces(share, {kA, kB}, 10 * 1001, 4096);
  EXPECT_NEAR(double(copied[kB]), 10 * 4096.0, 4096.0);
}

TEST(LinkShare, AnIdlePlanSavesUpNoClaim) {
  LinkShare share;
  share.Add(kA, Weight(1));
  share.Add(kB, Weight(1));
  CopyPieces(share, {kA}, 1000);
  auto copied = CopyPieces(share, {kA, kB}, 100);
  EXPECT_NEAR(double(copied[kA]), 50.0 * kPiece, double(kPiece));
  // Nor does one that is new, nor is it held back.
  share.Add(kC, Weight(1));
  copied = CopyPieces(share, {kA, kB, kC}, 99);
  EXPECT_NEAR(double(copied[kC]), 33.0 * kPiece, double(kPiece));
}

TEST(LinkShare, APlanAloneOwesNothingForIt) {
  LinkShare share;
  share.Add(kA, Weight(1));
  CopyPieces(share, {kA}, 1000);
  share.Add(kB, Weight(1));
  auto copied = CopyPieces(share, {kA, kB}, 10);
  EXPECT_NEAR(double(copied[kA]), 5.0 * kPiece, double(kPiece));
}

TEST(LinkShare, HigherPriorityGoesFirstOnlyWhileItHasSomethingToCopy) {
  LinkShare share;
  share.Add(kA, Weight(1, -1));
  share.Add(kB, Weight(1, 0));
  share.Add(kC, Weight(1000, -1));
  EXPECT_EQ(CopyPieces(share, {kA, kB, kC}, 100)[kB], 100 * kPiece);
  EXPECT_EQ(share.Pick({kA}, At(0)), kA);
  auto copied = CopyPieces(share, {kA, kC}, 1001);
  EXPECT_EQ(copied[kA] + copied[kC], 1001 * kPiece);
  EXPECT_EQ(share.Pick({kC, kB, kA}, At(0)), kB);
}

TEST(LinkShare, BeingStarvedByAHigherPriorityChangesNoShares) {
  LinkShare share;
  share.Add(kA, Weight(1));
  share.Add(kB, Weight(3));
  share.Add(kC, Weight(1, 5));
  uint64_t a = 0;
  uint64_t b = 0;
  for (int i = 0; i < 100; ++i) {
    auto copied = CopyPieces(share, {kA, kB}, 4);
    a += copied[kA];
    b += copied[kB];
    CopyPieces(share, {kA, kB, kC}, 50);
  }
  EXPECT_NEAR(double(a), 100.0 * kPiece, double(kPiece));
  EXPECT_NEAR(double(b), 300.0 * kPiece, double(kPiece));
}

TEST(LinkShare, ACapHoldsOverAnyWindow) {
  constexpr uint64_t kRate = 500'000'000;
  LinkShare share;
  share.Add(kA, Cap(kRate));
  std::mt19937 random(11);
  std::vector<std::pair<double, uint64_t>> copies;
  double now = 0;
  while (now < 60) {
    if (share.Pick({kA}, At(now))) {
      const uint64_t bytes = 1 + random() % kPiece;
      share.Charge(kA, bytes, At(now));
      copies.push_back({now, bytes});
    }
    // At times it is idle for long; that saves up no more than a burst.
    now += random() % 300 == 0 ? 5 : double(random() % 20) / 1000;
  }
  ASSERT_GT(copies.size(), 500u);
  for (size_t first = 0; first < copies.size(); ++first) {
    uint64_t bytes = 0;
    for (size_t last = first; last < copies.size(); ++last) {
      bytes += copies[last].second;
      const double window = copies[last].first - copies[first].first;
      ASSERT_LE(double(bytes), window * kRate + LinkShare::kBurstBytes + kPiece)
          << "from " << copies[first].first << " for " << window << " s";
    }
  }
}

TEST(LinkShare, WhoIsHeldBackGoesOnExactlyAtItsTurn) {
  LinkShare share;
  share.Add(kA, Cap(100 << 20));
  share.Add(kB, Cap(50 << 20));
  uint64_t a = 0;
  absl::Time now = At(0);
  for (int i = 0; i < 10'000; ++i) {
    const auto plan = share.Pick({kA, kB}, now);
    if (plan) {
      share.Charge(*plan, kPiece, now);
      if (plan == kA) a += kPiece;
      continue;
    }
    const absl::Time next = share.NextTurn({kA, kB});
    ASSERT_GT(next, now);
    ASSERT_FALSE(share.Pick({kA, kB}, next - absl::Microseconds(1)));
    ASSERT_TRUE(share.Pick({kA, kB}, next));
    now = next;
  }
  // And so it gets the rate that it may have.
  const double seconds = absl::ToDoubleSeconds(now - At(0));
  EXPECT_GT(seconds, 100);
  EXPECT_NEAR(double(a), seconds * (100 << 20),
              LinkShare::kBurstBytes + 2.0 * kPiece);
}

TEST(LinkShare, WhatACapHoldsBackOthersMayUse) {
  LinkShare share;
  share.Add(kA, Cap(1000, 5));
  share.Add(kB, Weight(1));
  CopyPieces(share, {kA}, 100);
  EXPECT_EQ(share.Pick({kA, kB}, At(0)), kB);
  EXPECT_EQ(share.Pick({kA}, At(0)), std::nullopt);
  // Only capped plans have a turn to wait for.
  EXPECT_EQ(share.NextTurn({kB}), absl::InfiniteFuture());
  EXPECT_GT(share.NextTurn({kA, kB}), At(100));
  EXPECT_LT(share.NextTurn({kA, kB}), absl::InfiniteFuture());
}

TEST(LinkShare, WeightsAndPrioritiesSetTakeEffectAtOnce) {
  LinkShare share;
  share.Add(kA, Weight(1));
  share.Add(kB, Weight(1));
  CopyPieces(share, {kA, kB}, 11);
  share.Set(kA, Weight(9));
  auto copied = CopyPieces(share, {kA, kB}, 100);
  EXPECT_NEAR(double(copied[kA]), 90.0 * kPiece, double(kPiece));
  share.Set(kB, Weight(1, 1));
  EXPECT_EQ(CopyPieces(share, {kA, kB}, 10)[kB], 10 * kPiece);
  // Back among equals it is neither owed nor in debt for more than a piece.
  share.Set(kB, Weight(9));
  copied = CopyPieces(share, {kA, kB}, 100);
  EXPECT_NEAR(double(copied[kA]), 50.0 * kPiece, double(kPiece));
}

TEST(LinkShare, CapsSetTakeEffectAtOnce) {
  LinkShare share;
  share.Add(kA, Cap(1000));
  CopyPieces(share, {kA}, 100);
  ASSERT_EQ(share.Pick({kA}, At(1)), std::nullopt);
  share.Set(kA, Cap(0));
  EXPECT_EQ(share.Pick({kA}, At(1)), kA);
  share.Set(kA, Cap(uint64_t{100} << 20));
  // Three pieces were copied, one beyond the burst.
  EXPECT_EQ(share.Pick({kA}, At(0.31)), std::nullopt);
  EXPECT_EQ(share.Pick({kA}, At(0.33)), kA);
}

}  // namespace hoistd::link_share_test
