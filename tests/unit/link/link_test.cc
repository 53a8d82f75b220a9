// Whose bytes go over the link, in what order and in what pieces.
#include "daemon/link/link.h"

#include <algorithm>
#include <vector>

#include "gmock/gmock.h"
#include "tests/support/status_matchers.h"
#include "tests/unit/link/rig.h"

namespace hoistd::testing::link_test {

using ::testing::Each;
using ::testing::ElementsAre;

const PlanId kPlan(1);
constexpr uint64_t kRing = kSmall;  // Where plans' slots end and images begin.

std::vector<uint64_t> SizesOf(const FaultyDevice& device) {
  std::vector<uint64_t> sizes;
  for (const auto& copy : device.copies()) sizes.push_back(copy.bytes);
  return sizes;
}

TEST(Link, AnImageIsCopiedWholeInPiecesAndToldOnce) {
  LinkRig rig;
  const uint64_t bytes = 2 * Link::kPieceBytes + 5 * kMiB + 3;
  const TransferId id = rig.Copy(4096, bytes, /*urgent=*/false);
  ASSERT_OK(rig.WaitFor(id));
  EXPECT_TRUE(rig.Right(4096, bytes));
  EXPECT_EQ(rig.faulty().copies().size(), 3u);
  EXPECT_EQ(rig.link().copied_bytes(LinkClass::kBackground), bytes);
  EXPECT_EQ(rig.link().copied_bytes(LinkClass::kLeases), 0u);
}

TEST(Link, AnEmptyImageIsThereAtOnce) {
  LinkRig rig;
  EXPECT_OK(rig.WaitFor(rig.Copy(0, 0, true)));
  EXPECT_TRUE(rig.faulty().copies().empty());
}

TEST(Link, SmallImagesGoTogetherAndNeighboursAreOneCopy) {
  LinkRig rig;
  rig.Wait();
  std::vector<TransferId> ids;
  for (uint64_t i = 0; i < 20; ++i) {
    ids.push_back(rig.Copy(i * 4096, 4096, false));
  }
  rig.Go();
  for (const TransferId id : ids) ASSERT_OK(rig.WaitFor(id));
  EXPECT_TRUE(rig.Right(0, 20 * 4096));
  EXPECT_EQ(rig.faulty().copies().size(), 1u);
}

TEST(LinkPiece, NeighboursAreOneRunAndRowsOfOnePitchOneCopy) {
  const std::vector<std::byte> host(1000);
  const auto at = [&](uint64_t from, uint64_t bytes) {
    return std::span(host).subspan(from, bytes);
  };
  LinkPiece piece;
  piece.Add(7, at(0, 6));
  piece.Add(13, at(6, 4));
  for (uint64_t i = 1; i < 5; ++i) piece.Add(7 + i * 10, at(i * 100, 10));
  ASSERT_EQ(piece.rows.size(), 1u);
  EXPECT_EQ(piece.rows[0].count, 5u);
  EXPECT_EQ(piece.rows[0].pitch, 100u);
  EXPECT_EQ(piece.rows[0].first.size(), 10u);
  piece.Add(57, at(501, 10));  // Another pitch,
  piece.Add(67, at(601, 9));   // another length,
  piece.Add(90, at(701, 9));   // another place,
  piece.Add(99, at(301, 9));   // and the way back.
  EXPECT_EQ(piece.rows.size(), 5u);
  EXPECT_EQ(piece.bytes, 87u);
}

TEST(LinkPiece, LongRunsAreNoRows) {
  const std::vector<std::byte> host(5 * LinkPiece::kMostRowBytes);
  LinkPiece piece;
  const uint64_t bytes = LinkPiece::kMostRowBytes + 1;
  piece.Add(0, std::span(host).first(bytes));
  piece.Add(bytes, std::span(host).subspan(2 * bytes, bytes));
  EXPECT_EQ(piece.rows.size(), 2u);
}

TEST(Link, ThePartsOfThoseWhoAllWantAreAsStated) {
  LinkRig rig;
  rig.Wait();
  // More than enough of each, in pieces of one size.
  Repeater& plan = rig.AddPlan(kPlan, 0, kSmall, {.pieces = 130});
  constexpr uint64_t kImage = 60 * kMiB;
  const TransferId loaded = rig.Copy(kRing, kImage, /*urgent=*/false);
  std::vector<TransferId> leased;
  for (int i = 0; i < 3; ++i) {
    leased.push_back(rig.Copy(kRing + kImage, kImage, true));
  }
  rig.Go();
  ASSERT_TRUE(testing::Until([&] { return plan.ended() == 130; }));
  // 130 turns: 96 plans', 32 leases', 2 the background's; a turn more or less.
  EXPECT_NEAR(double(rig.BytesTo(0, kRing, 130)), 96.0 * kSmall, kSmall);
  EXPECT_NEAR(double(rig.BytesTo(kRing + kImage, kImage, 130)), 32.0 * kSmall,
              kSmall);
  EXPECT_NEAR(double(rig.BytesTo(kRing, kImage, 130)), 2.0 * kSmall, kSmall);
  EXPECT_GE(rig.BytesTo(kRing, kImage, 130), kSmall);
  for (const TransferId id : leased) ASSERT_OK(rig.WaitFor(id));
  rig.clock().Advance(absl::Seconds(1));
  ASSERT_OK(rig.WaitFor(loaded));
  EXPECT_TRUE(rig.Right(kRing, 2 * kImage));
}

TEST(Link, WhoWaitsForALeaseIsNotStarvedByAnyPlan) {
  LinkRig rig;
  rig.Wait();
  Repeater& plan = rig.AddPlan(kPlan, 0, kSmall, {.pieces = 100},
                               {.weight = ShareOptions::kMaxWeight,
                                .priority = ShareOptions::kMaxPriority});
  const TransferId id = rig.Copy(kRing, 10 * kSmall, /*urgent=*/true);
  rig.Go();
  ASSERT_OK(rig.WaitFor(id));
  ASSERT_TRUE(testing::Until([&] { return plan.ended() == 100; }));
  // A quarter of 40 turns.
  EXPECT_GE(rig.BytesTo(kRing, LinkRig::kBytes, 44), 10 * kSmall);
}

// Its next piece is known only when the one before has ended: there is a moment
// in which it has none, though it needs all of the link.
TEST(Link, ARingOfTwoSlotsLosesNothingToTheBackground) {
  LinkRig rig;
  rig.Wait();
  Repeater& plan = rig.AddPlan(kPlan, 0, kSmall, {.pieces = 98, .at_once = 1});
  const TransferId id = rig.Copy(kRing, 10 * kSmall, /*urgent=*/false);
  rig.Go();
  ASSERT_TRUE(testing::Until([&] { return plan.ended() == 98; }));
  rig.Settle();
  // Its least part alone: one of 49.
  EXPECT_LE(rig.BytesTo(kRing, LinkRig::kBytes, 200), 3 * kSmall);
  rig.clock().Advance(absl::Seconds(1));
  ASSERT_OK(rig.WaitFor(id));
}

TEST(Link, TheBackgroundStartsWhenItTakesNoLongerThanTheGapSoFar) {
  LinkRig rig;
  rig.Wait();
  Repeater& plan = rig.AddPlan(kPlan, 0, kSmall,
                               {.pieces = 20,
                                .at_once = 1,
                                .clock = &rig.clock(),
                                .takes = absl::Milliseconds(1)});  // 4.2 GB/s.
  const TransferId id = rig.Copy(kRing, 100 * kMiB, /*urgent=*/false);
  rig.Go();
  ASSERT_TRUE(testing::Until([&] { return plan.ended() == 20; }));
  rig.Settle();
  const size_t before = rig.faulty().copies().size();
  EXPECT_LE(before, 22u);
  rig.clock().Advance(absl::Microseconds(500));
  rig.Settle();
  EXPECT_EQ(rig.faulty().copies().size(), before);
  EXPECT_FALSE(rig.end(id).has_value());
  rig.clock().Advance(absl::Microseconds(900));
  ASSERT_OK(rig.WaitFor(id));
  const auto copies = rig.faulty().copies();
  // One small piece after the other.
  EXPECT_GE(copies.size(), before + 12);
  for (size_t i = before; i < copies.size(); ++i) {
    EXPECT_LE(copies[i].bytes, 2 * kSmall) << i;
  }
}

TEST(Link, WhereNobodyElseCopiesPiecesAreLarge) {
  LinkRig rig;
  ASSERT_OK(rig.WaitFor(rig.Copy(0, 4 * Link::kPieceBytes, false)));
  EXPECT_THAT(SizesOf(rig.faulty()), Each(Link::kPieceBytes));
}

// What kernels read is in no queue: where they take three quarters of the link,
// and where they take all of it, the background has one.
TEST(Link, TheBackgroundLeavesTheLinkToWhatIsReadInPlace) {
  for (const double read : {0.75, 1.0}) {
    LinkRig rig;
    // Of the rate that is guessed until it is known.
    const double seconds = absl::ToDoubleSeconds(LinkMeter::kReadMemory);
    rig.link().ReadInPlace(
        static_cast<uint64_t>(read * LinkMeter::kFirstGuess * seconds));
    const TransferId id = rig.Copy(0, 2 * Link::kPieceBytes, /*urgent=*/false);
    ASSERT_TRUE(testing::Until([&] { return !rig.faulty().copies().empty(); }));
    rig.Settle();
    EXPECT_THAT(SizesOf(rig.faulty()), ElementsAre(Link::kPieceBytes));
    // Who is waited for, does not.
    ASSERT_OK(rig.WaitFor(rig.Copy(96 * kMiB, kMiB, /*urgent=*/true)));
    const double takes = double(Link::kPieceBytes) / LinkMeter::kFirstGuess;
    rig.clock().Advance(absl::Seconds(3.9 * takes));
    rig.Settle();
    EXPECT_FALSE(rig.end(id).has_value()) << read;
    rig.clock().Advance(absl::Seconds(0.2 * takes));
    ASSERT_OK(rig.WaitFor(id));
    EXPECT_TRUE(rig.Right(0, 2 * Link::kPieceBytes));
  }
}

TEST(Link, WhatIsHurriedOvertakesTheBackground) {
  LinkRig rig;
  rig.Wait();
  const TransferId first = rig.Copy(0, 40 * kMiB, false);
  const TransferId second = rig.Copy(40 * kMiB, 4 * kMiB, false);
  rig.link().Hurry(second);
  rig.link().Hurry(TransferId(99));  // Nobody's.
  rig.Go();
  ASSERT_OK(rig.WaitFor(second));
  rig.clock().Advance(absl::Seconds(1));
  ASSERT_OK(rig.WaitFor(first));
  EXPECT_EQ(rig.faulty().copies().front().to_offset, 40 * kMiB);
  EXPECT_EQ(rig.link().copied_bytes(LinkClass::kLeases), 4 * kMiB);
  EXPECT_EQ(rig.link().copied_bytes(LinkClass::kBackground), 40 * kMiB);
  EXPECT_TRUE(rig.Right(0, 44 * kMiB));
}

TEST(Link, AnImageMayBeHurriedWhenSomeOfItIsThere) {
  LinkRig rig;
  rig.faulty().HoldCopies();
  const TransferId id = rig.Copy(0, 100 * kMiB, false);
  rig.faulty().WaitForCopies(Link::kPiecesUnderWay);
  rig.link().Hurry(id);
  rig.Settle();
  rig.faulty().LetCopiesGo();
  ASSERT_OK(rig.WaitFor(id));
  EXPECT_TRUE(rig.Right(0, 100 * kMiB));
  EXPECT_EQ(rig.link().copied_bytes(LinkClass::kLeases), 36 * kMiB);
}

TEST(Link, ACapOnLoadsHoldsBackThemAlone) {
  LinkRig rig({.load_bytes_per_second = kMiB});
  const TransferId load = rig.Copy(0, 120 * kMiB, false);
  // What is let through at once; then it is a second for each MiB.
  const uint64_t burst = LinkShare::kBurstBytes + Link::kPieceBytes;
  ASSERT_TRUE(testing::Until([&] {
    return rig.link().copied_bytes(LinkClass::kBackground) == burst;
  }));
  rig.Settle();
  EXPECT_EQ(rig.link().copied_bytes(LinkClass::kBackground), burst);
  ASSERT_OK(rig.WaitFor(rig.Copy(0, 64 * kMiB, /*urgent=*/true)));
  EXPECT_FALSE(rig.end(load).has_value());
  // The time that it waits for need not be looked for.
  rig.clock().Advance(absl::Seconds(33));
  rig.Settle();
  ASSERT_OK(rig.WaitFor(load));
}

TEST(Link, ACapOnLoadsMayComeAndGoWhileOneIsUnderWay) {
  LinkRig rig({.load_bytes_per_second = kMiB});
  const TransferId load = rig.Copy(0, 120 * kMiB, false);
  const uint64_t burst = LinkShare::kBurstBytes + Link::kPieceBytes;
  ASSERT_TRUE(testing::Until([&] {
    return rig.link().copied_bytes(LinkClass::kBackground) == burst;
  }));
  EXPECT_EQ(rig.link().load_rate(), kMiB);
  rig.link().SetLoadRate(0);
  ASSERT_OK(rig.WaitFor(load));
  EXPECT_EQ(rig.link().load_rate(), 0u);
  rig.link().SetLoadRate(kMiB);
  const TransferId next = rig.Copy(0, 120 * kMiB, false);
  rig.Settle();
  EXPECT_FALSE(rig.end(next).has_value());
  rig.link().SetLoadRate(0);
  ASSERT_OK(rig.WaitFor(next));
}

TEST(Link, ACustomerThatIsRemovedIsGoneWhenItsCopiesAre) {
  LinkRig rig;
  rig.faulty().HoldCopies();
  Repeater& plan = rig.AddPlan(kPlan, 0, kSmall, {.pieces = 2});
  rig.faulty().WaitForCopies(2);
  absl::Notification gone;
  rig.link().Post([&] {
    rig.link().Remove(LinkParty::Of(kPlan), [&gone] { gone.Notify(); });
  });
  rig.Settle();
  EXPECT_FALSE(gone.HasBeenNotified());
  rig.faulty().LetCopiesGo();
  gone.WaitForNotification();
  EXPECT_EQ(plan.ended(), 2);
}

}  // namespace hoistd::testing::link_test
