#include "daemon/link/link_meter.h"

#include "gtest/gtest.h"

namespace hoistd::link_meter_test {

constexpr uint64_t kPiece = 32'000'000;

absl::Time At(double seconds) {
  return absl::UnixEpoch() + absl::Seconds(seconds);
}

// Copies a piece a millisecond, and is idle for `idle` after each.
double Copy(LinkMeter& meter, LinkClass of, double at, int pieces,
            double idle) {
  for (int i = 0; i < pieces; ++i) {
    meter.Began(At(at));
    meter.Ended(of, kPiece, /*more=*/false, At(at + 0.001));
    at += 0.001 + idle;
  }
  return at;
}

TEST(LinkMeter, KnowsTheRateOfTheTimeInWhichSomethingWasCopied) {
  LinkMeter meter;
  EXPECT_DOUBLE_EQ(meter.Rate(), LinkMeter::kFirstGuess);
  const double at = Copy(meter, LinkClass::kPlans, 1, 100, 0.5);
  EXPECT_NEAR(meter.Rate(), 32e9, 1e9);
  // And that of today, not of all times.
  meter.Began(At(at));
  meter.Ended(LinkClass::kPlans, 20 * kPiece, false, At(at + 1));
  EXPECT_LT(meter.Rate(), 2e9);
}

TEST(LinkMeter, WhatIsCopiedBesideWorkersShowsTheLeastThatTheLinkCanDo) {
  LinkMeter meter;
  double at = Copy(meter, LinkClass::kPlans, 1, 100, 0);
  const double alone = meter.Rate();
  // Each takes twice as long.
  meter.SetShared(true, At(at));
  for (int i = 0; i < 100; ++i, at += 0.002) {
    meter.Began(At(at));
    meter.Ended(LinkClass::kPlans, kPiece, false, At(at + 0.002));
  }
  EXPECT_DOUBLE_EQ(meter.Rate(), alone);
  EXPECT_NEAR(meter.Demand(At(at)), 1, 0.01);
  // Twice as fast as was known.
  for (int i = 0; i < 100; ++i, at += 0.0005) {
    meter.Began(At(at));
    meter.Ended(LinkClass::kLeases, kPiece, false, At(at + 0.0005));
  }
  EXPECT_NEAR(meter.Rate(), 64e9, 2e9);
}

// Else half of its time would be missing from what is known.
TEST(LinkMeter, APieceIsSharedIfAnybodyCopiedInAnyOfItsTime) {
  LinkMeter meter;
  double at = Copy(meter, LinkClass::kPlans, 1, 100, 0);
  const double alone = meter.Rate();
  for (int i = 0; i < 100; ++i, at += 0.002) {
    meter.Began(At(at));
    meter.SetShared(true, At(at + 0.0005));
    meter.SetShared(false, At(at + 0.0015));
    // Two end at once.
    meter.Ended(LinkClass::kPlans, kPiece, true, At(at + 0.002));
    meter.Ended(LinkClass::kPlans, kPiece / 4, false, At(at + 0.002));
  }
  EXPECT_DOUBLE_EQ(meter.Rate(), alone);
}

TEST(LinkMeter, DemandIsThePartOfTheTimeInWhichSomethingWasCopied) {
  LinkMeter meter;
  EXPECT_EQ(meter.Demand(At(1)), 0);
  double at = Copy(meter, LinkClass::kBackground, 1, 1000, 0);
  EXPECT_NEAR(meter.Demand(At(at)), 1, 0.01);
  at = Copy(meter, LinkClass::kLeases, at, 1000, 0.003);
  EXPECT_NEAR(meter.Demand(At(at)), 0.25, 0.02);
  EXPECT_LT(meter.Demand(At(at + 1)), 0.001);
}

TEST(LinkMeter, APlanThatStreamsDemandsAll) {
  LinkMeter meter;
  const double at = Copy(meter, LinkClass::kPlans, 1, 10, 0.05);
  EXPECT_EQ(meter.Demand(At(at)), 1);
  EXPECT_LT(meter.Demand(At(at + 0.2)), 0.1);
}

TEST(LinkMeter, WhatKernelsReadIsKnownUntilNobodyTellsOfIt) {
  LinkMeter meter;
  double at = 10;
  EXPECT_EQ(meter.ReadRate(At(at)), 0);
  for (int i = 0; i < 20; ++i, at += 2) {
    meter.ReadBeside(16'000'000'000, At(at));
  }
  EXPECT_NEAR(meter.ReadRate(At(at - 1)), 8e9, 0.5e9);
  EXPECT_LT(meter.ReadRate(At(at + 60)), 1e6);
}

TEST(LinkMeter, WhoTellsMoreThanAnyLinkCanIsNotBelieved) {
  LinkMeter meter;
  meter.ReadBeside(~uint64_t{0}, At(1));
  EXPECT_LE(meter.ReadRate(At(1)), 250e9);
  // And holds nobody up who goes by the demand.
  EXPECT_EQ(meter.Demand(At(1)), 0);
  EXPECT_LT(meter.ReadRate(At(41)), 0.1e9);
}

}  // namespace hoistd::link_meter_test
