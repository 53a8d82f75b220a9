// The counted form: what is copied, when, and what the client finds.
#include "daemon/stream/streamer.h"

#include <future>
#include <random>

#include "gmock/gmock.h"
#include "tests/support/status_matchers.h"
#include "tests/unit/stream/rig.h"

namespace hoistd::testing::streamer_test {

using ::testing::ElementsAre;

TEST(Streamer, BytesAreRightOverManyPassesAndEachIsCopiedOnceAPass) {
  StreamRig rig;
  // In three places: each pass copies all eight.
  const uint64_t size = 96 * kKiB;
  TestLane lane = rig.Make(std::vector<uint64_t>(8, size), 3);
  rig.Open(lane);
  constexpr uint64_t kPasses = 25;
  for (uint64_t position = 0; position < 8 * kPasses; ++position) {
    ASSERT_OK(rig.Step(lane, position)) << position;
  }
  // All there is, and three ahead of the next pass.
  const uint64_t loads = 8 * kPasses + 3;
  EXPECT_TRUE(
      testing::Until([&] { return rig.Stats(lane.plan).loads == loads; }));
  const LaneStats stats = rig.Stats(lane.plan);
  EXPECT_EQ(stats.copied_bytes, loads * size);
  EXPECT_EQ(rig.link().copied_bytes(LinkClass::kPlans), loads * size);
  EXPECT_EQ(stats.served_in_place, 0u);
  EXPECT_EQ(stats.wasted_loads, 0u);
  EXPECT_EQ(rig.faults(lane.plan), 0);
}

TEST(Streamer, SizesMayDifferWildly) {
  StreamRig rig;
  TestLane lane = rig.Make({1, 4096, 700 * kKiB, 3, 65'537, 12 * kKiB}, 2);
  rig.Open(lane);
  for (uint64_t position = 0; position < 60; ++position) {
    ASSERT_OK(rig.Step(lane, position)) << position;
  }
}

TEST(Streamer, WhatLiesInItsSlotIsServedWithoutACopy) {
  StreamRig rig;
  TestLane lane = rig.Make(std::vector<uint64_t>(4, 8 * kKiB), 4);
  rig.Open(lane);
  for (uint64_t position = 0; position < 40; ++position) {
    ASSERT_OK(rig.Step(lane, position)) << position;
  }
  EXPECT_TRUE(testing::Until(
      [&] { return rig.Stats(lane.plan).served_in_place == 40; }));
  EXPECT_EQ(rig.Stats(lane.plan).loads, 4u);
}

TEST(Streamer, AGroupOfManyPiecesIsReadyWhenTheLastIsThere) {
  StreamRig rig({.device_bytes = 80 * kMiB, .host_bytes = 80 * kMiB});
  const uint64_t size = 2 * Link::kPieceBytes + 5 * kMiB + 3;
  TestLane lane = rig.Make({size, kMiB}, 1);
  rig.Open(lane);
  for (uint64_t position = 0; position < 4; ++position) {
    ASSERT_OK(rig.Step(lane, position)) << position;
  }
  EXPECT_GE(rig.faulty().calls(DeviceCall::kCopyIn), 8);
}

TEST(Streamer, SmallNeighboursGoInOneCopy) {
  StreamRig rig;
  TestLane lane = rig.Make(std::vector<uint64_t>(8, 64 * kKiB), 8);
  rig.Open(lane);
  for (uint64_t position = 0; position < 8; ++position) {
    ASSERT_OK(rig.Step(lane, position)) << position;
  }
  // Three in each: two fifths of the ring.
  EXPECT_EQ(rig.faulty().calls(DeviceCall::kCopyIn), 3);
  EXPECT_TRUE(testing::Until([&] { return rig.Stats(lane.plan).loads == 8; }));
}

TEST(Streamer, ASlotIsNotFilledAnewBeforeItsGroupIsDone) {
  StreamRig rig;
  TestLane lane = rig.Make(std::vector<uint64_t>(2, 16 * kKiB), 1);
  rig.Open(lane);
  ASSERT_OK(lane.client->Stage(0));
  lane.client->Announce(1);
  // Others pass meanwhile, so the streamer has had its chances.
  TestLane other = rig.Make(std::vector<uint64_t>(3, 16 * kKiB), 2);
  rig.Open(other);
  for (uint64_t position = 0; position < 30; ++position) {
    ASSERT_OK(rig.Step(other, position));
  }
  EXPECT_TRUE(rig.Right(lane, 0));
  EXPECT_EQ(lane.client->group(1).ready, 0u);
  lane.client->Done(0);
  EXPECT_OK(rig.Step(lane, 1));
}

TEST(Streamer, HowLongAClientWaitedIsCountedAndOutlivesItsPlan) {
  testing::HandClock clock;
  StreamRig rig({.clock = &clock});
  TestLane lane = rig.Make(std::vector<uint64_t>(2, 16 * kKiB), 1);
  rig.Open(lane, false);
  lane.client->Announce(0);
  // It is seen before time passes.
  ASSERT_TRUE(testing::Until([&] { return !rig.wanted(lane.plan).empty(); }));
  clock.Advance(3);
  rig.HostReady(lane, 0);
  ASSERT_TRUE(testing::Until([&] { return rig.Stats(lane.plan).waits > 0; }));
  const auto before = rig.streamer().Totals();
  EXPECT_GE(before.waited, absl::ZeroDuration());
  EXPECT_LE(before.waited, absl::Seconds(3));
  rig.Close(lane.plan);
  EXPECT_EQ(rig.streamer().Totals().waits, before.waits);
  EXPECT_GE(rig.streamer().Totals().waited, before.waited);
}

class StreamerSeeds : public ::testing::TestWithParam<uint64_t> {};

TEST_P(StreamerSeeds, SkipsAndRepeatsAreCorrect) {
  const uint64_t seed = GetParam();
  SCOPED_TRACE(absl::StrCat("seed ", seed));
  std::mt19937_64 random(seed);
  StreamRig rig;
  TestLane lane = rig.Make(std::vector<uint64_t>(7, 24 * kKiB), 3,
                           {0, 1, 2, 3, 1, 4, 5, 6});
  rig.Open(lane);
  for (int i = 0; i < 400; ++i) {
    // Mostly in order, else to any place, this one again included.
    const uint64_t place =
        random() % 3 != 0 ? lane.client->next() % 8 : random() % 8;
    ASSERT_OK(rig.Step(lane, lane.client->NextOf(place))) << "step " << i;
  }
  EXPECT_TRUE(testing::Until([&] {
    const LaneStats stats = rig.Stats(lane.plan);
    return stats.skipped + 400 == lane.client->next();
  }));
  EXPECT_GT(rig.Stats(lane.plan).wasted_loads, 0u);
}

INSTANTIATE_TEST_SUITE_P(, StreamerSeeds, ::testing::Values(1, 2, 3));

TEST(Streamer, AGroupIsLoadedWhenItsImageIsOnTheHost) {
  StreamRig rig;
  TestLane lane = rig.Make(std::vector<uint64_t>(3, 16 * kKiB), 2);
  rig.Open(lane, false);
  EXPECT_TRUE(testing::Until([&] { return !rig.wanted(lane.plan).empty(); }));
  EXPECT_THAT(rig.wanted(lane.plan), ElementsAre(0));
  rig.HostReady(lane, 0);
  ASSERT_OK(rig.Step(lane, 0));
  EXPECT_TRUE(
      testing::Until([&] { return rig.wanted(lane.plan).size() == 2; }));
  EXPECT_THAT(rig.wanted(lane.plan), ElementsAre(0, 1));
  rig.HostReady(lane, 2);
  rig.HostReady(lane, 1);
  ASSERT_OK(rig.Step(lane, 1));
  ASSERT_OK(rig.Step(lane, 2));
  EXPECT_EQ(rig.Stats(lane.plan).host_waits, 2u);
}

TEST(Streamer, AnImageThatIsLentOnceIsAskedForEachPass) {
  StreamRig rig;
  TestLane lane = rig.Make(std::vector<uint64_t>(3, 16 * kKiB), 1);
  rig.Open(lane, false);
  for (uint64_t position = 0; position < 9; ++position) {
    const size_t asked = position + 1;
    ASSERT_TRUE(
        testing::Until([&] { return rig.wanted(lane.plan).size() == asked; }));
    EXPECT_EQ(rig.wanted(lane.plan).back(), position % 3);
    rig.HostReady(lane, rig.wanted(lane.plan).back(), /*once=*/true);
    ASSERT_OK(rig.Step(lane, position));
    ASSERT_TRUE(
        testing::Until([&] { return rig.used(lane.plan).size() == asked; }));
  }
  EXPECT_THAT(rig.used(lane.plan), ElementsAre(0, 1, 2, 0, 1, 2, 0, 1, 2));
}

TEST(Streamer, AnImageThatWasLentComesBackUnlessItIsBeingRead) {
  StreamRig rig;
  TestLane lane = rig.Make(std::vector<uint64_t>(4, 16 * kKiB), 2);
  rig.Open(lane, false);
  rig.HostReady(lane, 3, /*once=*/true);
  rig.streamer().TakeBack(lane.plan, 3);
  ASSERT_TRUE(
      testing::Until([&] { return rig.returned(lane.plan).size() == 1; }));
  EXPECT_THAT(rig.returned(lane.plan), ElementsAre(3));
  rig.streamer().TakeBack(lane.plan, 3);  // It has none.
  rig.faulty().HoldCopies();
  rig.HostReady(lane, 0, /*once=*/true);
  rig.faulty().WaitForCopies(1);
  rig.streamer().TakeBack(lane.plan, 0);
  rig.Close(PlanId(77));  // Its end shows that TakeBack had its turn.
  rig.faulty().LetCopiesGo();
  ASSERT_TRUE(testing::Until([&] { return rig.used(lane.plan).size() == 1; }));
  EXPECT_THAT(rig.returned(lane.plan), ElementsAre(3));
}

TEST(Streamer, SleepsAndIsWokenByTheClient) {
  StreamRig rig;
  TestLane lane = rig.Make(std::vector<uint64_t>(4, 16 * kKiB), 2);
  rig.Open(lane);
  for (uint64_t position = 0; position < 20; ++position) {
    // Asleep, not napping: from here on only the eventfd can wake it.
    ASSERT_TRUE(
        testing::Until([&] { return lane.client->header().sleeping == 1; }));
    ASSERT_OK(rig.Step(lane, position)) << position;
  }
}

TEST(Streamer, CloseWaitsForTheCopiesIntoTheRing) {
  StreamRig rig;
  TestLane lane = rig.Make(std::vector<uint64_t>(4, 16 * kKiB), 2);
  rig.faulty().HoldCopies();
  rig.Open(lane);
  rig.faulty().WaitForCopies(1);
  std::promise<void> closed;
  auto future = closed.get_future();
  rig.streamer().Close(lane.plan, [&] { closed.set_value(); });
  // Another command's end shows that Close had its turn.
  rig.Close(PlanId(77));
  EXPECT_EQ(future.wait_for(std::chrono::seconds(0)),
            std::future_status::timeout);
  rig.faulty().LetCopiesGo();
  future.get();
  EXPECT_TRUE(rig.streamer().Stats().empty());
  const int copies = rig.faulty().calls(DeviceCall::kCopyIn);
  TestLane next = rig.Make({16 * kKiB}, 1);
  rig.Open(next);
  ASSERT_OK(rig.Step(next, 0));
  EXPECT_EQ(rig.faulty().calls(DeviceCall::kCopyIn), copies + 1);
}

TEST(Streamer, APlansLaneIsOpenedOnceAndSpecsAreChecked) {
  StreamRig rig;
  TestLane lane = rig.Make({4096, 4096}, 2);
  ASSERT_OK(rig.TryOpen(lane));
  EXPECT_THAT(rig.TryOpen(lane), StatusIs(absl::StatusCode::kAlreadyExists));
  TestLane bad = rig.Make({4096, 4096}, 2, {0, 2});
  EXPECT_THAT(rig.TryOpen(bad), StatusIs(absl::StatusCode::kInvalidArgument));
  bad.spec.order = {0, 0};
  EXPECT_THAT(rig.TryOpen(bad), StatusIs(absl::StatusCode::kInvalidArgument));
  bad.spec.order = {};
  EXPECT_THAT(rig.TryOpen(bad), StatusIs(absl::StatusCode::kInvalidArgument));
}

TEST(Streamer, ALanesMemoryCannotBeShrunkNorSealed) {
  StreamRig rig;
  TestLane lane = rig.Make({4096}, 1);
  std::promise<absl::StatusOr<LaneShare>> opened;
  rig.streamer().Open(lane.spec, std::nullopt,
                      [&](absl::StatusOr<LaneShare> share) {
                        opened.set_value(std::move(share));
                      });
  ASSERT_OK_AND_ASSIGN(const LaneShare share, opened.get_future().get());
  EXPECT_NE(ftruncate(share.memory.get(), 0), 0);
  EXPECT_NE(ftruncate(share.memory.get(), 1 << 20), 0);
}

}  // namespace hoistd::testing::streamer_test
