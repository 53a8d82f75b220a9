// Who is granted how much, beside whom, and when.
#include "daemon/permit/permit_desk.h"

#include <vector>

#include "gmock/gmock.h"
#include "tests/support/status_matchers.h"
#include "tests/unit/permit/rig.h"

namespace hoistd::testing::permit_desk_test {

const PermitId kOne(1);
const PermitId kTwo(2);
const PlanId kPlan(1);

TEST(PermitDesk, WhatIsAskedForIsGrantedInPiecesOfWhichTwoAreUnderWay) {
  PermitRig rig;
  PermitClient client = rig.Open(kOne);
  client.Ask(2 * kPiece + 5);
  ASSERT_TRUE(client.AwaitGranted(2 * kPiece));
  rig.link().Settle();
  EXPECT_EQ(client.granted(), 2 * kPiece);
  EXPECT_EQ(rig.Stats(kOne).copied_bytes, 0u);
  client.Done(kPiece);
  ASSERT_TRUE(client.AwaitGranted(2 * kPiece + 5));
  client.Done(kPiece + 5);
  ASSERT_TRUE(Until([&] {
    return rig.Stats(kOne).copied_bytes == 2 * uint64_t{kPiece} + 5;
  }));
  EXPECT_EQ(rig.Stats(kOne).grants, 3u);
  EXPECT_EQ(rig.Stats(kOne).late, 0u);
  EXPECT_EQ(rig.Stats(kOne).session, SessionId(7));
}

TEST(PermitDesk, NothingIsGrantedThatIsNotAskedFor) {
  PermitRig rig;
  PermitClient client = rig.Open(kOne);
  // On a stream, behind kernels that still run.
  client.page().put.store(kPiece);
  client.Wake();
  rig.link().Settle();
  EXPECT_EQ(client.granted(), 0u);
}

// Each weight beside a plan of weight 1, which has 128 turns of 4 MiB.
class PermitShares : public ::testing::TestWithParam<uint32_t> {};

TEST_P(PermitShares, OfTheLinkAreByWeightAmongPlansAndPermits) {
  const uint32_t weight = GetParam();
  PermitRig rig;
  PermitClient client = rig.Open(kOne, {.weight = weight});
  PermitClient other = rig.Open(kTwo, {.weight = weight});
  rig.link().Wait();
  Repeater& plan = rig.link().AddPlan(kPlan, 0, kSmall, {.pieces = 128});
  EagerWorker one(std::move(client));
  EagerWorker two(std::move(other));
  rig.link().Go();
  ASSERT_TRUE(Until([&] { return plan.ended() == 128; }));
  // They may take more once the plan has ended, and not less.
  const double fair = 128.0 * kSmall * weight;
  EXPECT_GE(double(rig.Stats(kOne).copied_bytes), fair - 2.0 * kPiece);
  EXPECT_GE(double(rig.Stats(kTwo).copied_bytes), fair - 2.0 * kPiece);
}

INSTANTIATE_TEST_SUITE_P(, PermitShares, ::testing::Values(1, 2, 3),
                         [](const auto& tried) {
                           return "Weight" + std::to_string(tried.param);
                         });

TEST(PermitDesk, APlanOfAHigherPriorityGoesFirst) {
  PermitRig rig;
  PermitClient client = rig.Open(kOne);
  rig.link().faulty().HoldCopies();
  Repeater& plan =
      rig.link().AddPlan(kPlan, 0, kSmall, {.pieces = 50}, {.priority = 1});
  rig.link().faulty().WaitForCopies(Link::kPiecesUnderWay);
  client.Ask(kPiece);
  rig.link().faulty().LetCopiesGo();
  // Not before the plan has nothing more.
  ASSERT_TRUE(client.AwaitGranted(kPiece));
  EXPECT_GE(plan.ended(), 49);
}

TEST(PermitDesk, APermitOfAHigherPriorityGoesFirst) {
  PermitRig rig;
  PermitClient client = rig.Open(kOne, {.priority = 1});
  rig.link().Wait();
  client.Ask(4 * kPiece);
  Repeater& plan = rig.link().AddPlan(kPlan, 0, kSmall, {.pieces = 3});
  rig.link().Go();
  for (uint32_t i = 1; i <= 4; ++i) {
    ASSERT_TRUE(client.AwaitGranted(i * kPiece));
    if (i < 4) {
      rig.link().Settle();
      EXPECT_EQ(plan.ended(), 0) << i;
    }
    client.Done(kPiece);
  }
  ASSERT_TRUE(Until([&] { return plan.ended() == 3; }));
}

TEST(PermitDesk, ACapHoldsBackUntilItIsChanged) {
  PermitRig rig;
  PermitClient client = rig.Open(kOne, {.max_bytes_per_second = kMiB});
  client.Ask(5 * kPiece);
  // What is let through at once: LinkShare::kBurstBytes, and a piece.
  for (uint32_t i = 1; i <= 3; ++i) {
    ASSERT_TRUE(client.AwaitGranted(i * kPiece));
    client.Done(kPiece);
  }
  rig.link().Settle();
  EXPECT_EQ(client.granted(), 3 * kPiece);
  rig.desk().SetShare(kOne, {});
  EXPECT_TRUE(client.AwaitGranted(5 * kPiece));
  EXPECT_EQ(rig.Stats(kOne).share.max_bytes_per_second, 0u);
}

TEST(PermitDesk, WhoAsksWakesALinkThatSleeps) {
  PermitRig rig;
  PermitClient client = rig.Open(kOne);
  for (uint32_t i = 1; i <= 3; ++i) {
    ASSERT_TRUE(Until([&] { return client.page().sleeping.load() == 1; }));
    client.Ask(kPiece);
    ASSERT_TRUE(client.AwaitGranted(i * kPiece));
    client.Done(kPiece);
  }
}

TEST(PermitDesk, AWorkerThatStopsHoldsUpAPlanNoLongerThanItsCopyWould) {
  PermitRig rig;
  PermitClient client = rig.Open(kOne);
  client.Ask(4 * kPiece);
  ASSERT_TRUE(client.AwaitGranted(2 * kPiece));
  // And stops. Both places are taken.
  Repeater& plan = rig.link().AddPlan(kPlan, 0, kSmall, {.pieces = 100});
  rig.link().Settle();
  EXPECT_EQ(plan.ended(), 0);
  // 64 MiB at the rate that is guessed until it is known.
  const double takes = 2 * double(kPiece) / LinkMeter::kFirstGuess;
  rig.link().clock().Advance(absl::Seconds(Link::kGrantSlack * takes));
  ASSERT_TRUE(Until([&] { return plan.ended() == 100; }));
  ASSERT_TRUE(Until([&] { return rig.Stats(kOne).late == 2; }));
  // It gets no more while it is late, as long as it is let.
  EXPECT_EQ(client.granted(), 2 * kPiece);
  // Once it goes on, all is well.
  client.Done(2 * kPiece);
  ASSERT_TRUE(client.AwaitGranted(4 * kPiece));
  EXPECT_EQ(rig.Stats(kOne).copied_bytes, 2 * uint64_t{kPiece});
}

// Begun and not ended, as far as hoistd can see.
TEST(PermitDesk, AWorkerThatHoldsMoreThanItEndsGoesOnSlowly) {
  PermitRig rig;
  PermitClient client = rig.Open(kOne);
  client.Ask(5 * kPiece);
  ASSERT_TRUE(client.AwaitGranted(2 * kPiece));
  rig.link().clock().Advance(absl::Seconds(1));
  ASSERT_TRUE(Until([&] { return rig.Stats(kOne).late == 2; }));
  EXPECT_EQ(client.granted(), 2 * kPiece);
  rig.link().clock().Advance(CopyPermit::kLateAgain);
  ASSERT_TRUE(client.AwaitGranted(3 * kPiece));
}

TEST(PermitDesk, ClosingLetsWaitsThroughAndFreesThePlaces) {
  PermitRig rig;
  PermitClient client = rig.Open(kOne);
  client.Ask(4 * kPiece);
  ASSERT_TRUE(client.AwaitGranted(2 * kPiece));
  client.Done(kPiece);
  client.page().read.store(12);
  Repeater& plan = rig.link().AddPlan(kPlan, 0, kSmall, {.pieces = 5});
  rig.CloseAndWait(kOne);
  EXPECT_TRUE(hoist::lane::Reached(client.granted(), 4 * kPiece));
  ASSERT_TRUE(Until([&] { return plan.ended() == 5; }));
  EXPECT_TRUE(rig.desk().Stats().empty());
  EXPECT_EQ(rig.desk().AllTotals().copied_bytes, kPiece);
  EXPECT_EQ(rig.desk().AllTotals().read_bytes, 12u);
  rig.CloseAndWait(kOne);  // It is closed already.
}

TEST(PermitDesk, ItsEndLetsAllWaitsThrough) {
  PermitRig rig;
  PermitClient one = rig.Open(kOne);
  PermitClient two = rig.Open(kTwo);
  one.Ask(4 * kPiece);
  two.Ask(4 * kPiece);
  rig.EndDesk();
  EXPECT_TRUE(hoist::lane::Reached(one.granted(), 4 * kPiece));
  EXPECT_TRUE(hoist::lane::Reached(two.granted(), 4 * kPiece));
}

TEST(PermitDesk, ABrokenDeviceLetsAllWaitsThroughAndOpensNoMore) {
  PermitRig rig;
  PermitClient client = rig.Open(kOne);
  rig.link().faulty().HoldCopies();
  rig.link().Copy(0, kMiB, /*urgent=*/true);
  rig.link().faulty().WaitForCopies(1);
  client.Ask(4 * kPiece);
  rig.link().faulty().FailAll(DeviceCall::kHealth,
                              absl::InternalError("sticky"));
  EXPECT_TRUE(client.AwaitGranted(4 * kPiece));
  rig.link().faulty().LetCopiesGo();
  EXPECT_THAT(rig.TryOpen(kTwo), StatusIs(absl::StatusCode::kInternal));
}

TEST(PermitDesk, RecordingsAreToldWhatWorkersCopyEachWay) {
  PermitRig rig;
  PermitClient client = rig.Open(kOne);
  auto recording = rig.link().recorder().Start().value();
  rig.link().Settle();
  client.page().read.store(33);
  client.Ask(kPiece);
  ASSERT_TRUE(client.AwaitGranted(kPiece));
  rig.link().clock().Advance(absl::Milliseconds(1));
  rig.link().Settle();  // A turn takes its time before it looks at pages.
  client.Done(kPiece);
  ASSERT_TRUE(Until([&] { return rig.Stats(kOne).copied_bytes == kPiece; }));
  rig.link().Settle();
  std::vector<TraceEvent> events;
  for (const TraceEvent& event : recording->Take(100).events) {
    if (event.kind == TraceKind::kGrantedCopy ||
        event.kind == TraceKind::kOwnRead) {
      events.push_back(event);
    }
  }
  ASSERT_EQ(events.size(), 2u);
  EXPECT_EQ(events[0].kind, TraceKind::kOwnRead);
  EXPECT_EQ(events[0].bytes, 33u);
  EXPECT_EQ(events[1].kind, TraceKind::kGrantedCopy);
  EXPECT_EQ(events[1].bytes, kPiece);
  EXPECT_EQ(events[1].session, SessionId(7));
  EXPECT_EQ(events[1].end - events[1].begin, absl::Milliseconds(1));
  EXPECT_FALSE(events[1].failed);
}

}  // namespace hoistd::testing::permit_desk_test
