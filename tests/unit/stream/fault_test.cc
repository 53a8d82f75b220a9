// What goes wrong, who is told, and that nobody waits for ever.
#include <future>

#include "gmock/gmock.h"
#include "tests/support/status_matchers.h"
#include "tests/unit/stream/rig.h"

namespace hoistd::testing::fault_test {

using ::testing::HasSubstr;

class StreamerFaults : public ::testing::TestWithParam<DeviceCall> {};

// A client stages until it is told of the fault; another goes on if `spares`.
TEST_P(StreamerFaults, AreTypedToldOnceAndReleaseWhatWaits) {
  StreamRig rig;
  TestLane lane = rig.Make(std::vector<uint64_t>(4, 16 * kKiB), 2);
  TestLane other = rig.Make(std::vector<uint64_t>(3, 16 * kKiB), 1);
  rig.Open(lane);
  ASSERT_OK(rig.Step(lane, 0));
  // In full: four loads in all, so that the next copy is the lane's again.
  ASSERT_TRUE(testing::Until([&] { return rig.Stats(lane.plan).loads == 3; }));
  rig.faulty().FailNth(GetParam(), 1, absl::DataLossError("as told"));
  absl::Status status;
  uint64_t position = 1;
  while (status.ok() && position < 100) status = rig.Step(lane, position++);
  EXPECT_THAT(status,
              StatusIs(absl::StatusCode::kDataLoss, HasSubstr("as told")));
  EXPECT_LT(position, 10u);
  EXPECT_TRUE(testing::Until([&] { return !rig.Stats(lane.plan).fault.ok(); }));
  // Whatever is staged later does not wait either.
  EXPECT_THAT(lane.client->Stage(position + 10),
              StatusIs(absl::StatusCode::kDataLoss));
  rig.Open(other);
  for (uint64_t at = 0; at < 9; ++at) ASSERT_OK(rig.Step(other, at));
  EXPECT_EQ(rig.faults(lane.plan), 1);
  EXPECT_EQ(rig.faults(other.plan), 0);
  rig.Close(lane.plan);
}

INSTANTIATE_TEST_SUITE_P(, StreamerFaults,
                         ::testing::Values(DeviceCall::kCopyIn,
                                           DeviceCall::kWriteWords),
                         [](const auto& tried) {
                           return tried.param == DeviceCall::kCopyIn ? "Copy"
                                                                     : "Words";
                         });

TEST(StreamerFault, ABrokenDeviceEndsAllPlansAndOpensNoMore) {
  StreamRig rig;
  TestLane one = rig.Make(std::vector<uint64_t>(3, 16 * kKiB), 2);
  TestLane two = rig.Make(std::vector<uint64_t>(3, 16 * kKiB), 2);
  rig.faulty().HoldCopies();
  rig.Open(one);
  rig.Open(two);
  rig.faulty().FailAll(DeviceCall::kHealth, absl::InternalError("sticky"));
  for (TestLane* lane : {&one, &two}) {
    EXPECT_THAT(lane->client->Stage(0),
                StatusIs(absl::StatusCode::kInternal, HasSubstr("sticky")));
    EXPECT_TRUE(testing::Until([&] { return rig.faults(lane->plan) == 1; }));
  }
  rig.faulty().LetCopiesGo();
  rig.Close(one.plan);
  TestLane three = rig.Make({4096}, 1);
  EXPECT_THAT(rig.TryOpen(three), StatusIs(absl::StatusCode::kInternal));
}

TEST(StreamerFault, AnOwnersReasonReachesTheClient) {
  StreamRig rig;
  TestLane lane = rig.Make({4096, 4096}, 1);
  rig.Open(lane, false);
  auto waiting =
      std::async(std::launch::async, [&] { return lane.client->Stage(0); });
  const std::string text(1000, 'x');
  rig.streamer().Fail(lane.plan, absl::AbortedError(text));
  rig.streamer().Fail(lane.plan, absl::InternalError("too late"));
  EXPECT_THAT(waiting.get(),
              StatusIs(absl::StatusCode::kAborted,
                       text.substr(0, hoist::lane::kMaxFaultText - 1)));
  EXPECT_TRUE(testing::Until([&] { return rig.faults(lane.plan) == 1; }));
}

// In the captured form a graph that is launched again waits again.
TEST(StreamerFault, GraphsAreReleasedAgainAndAgain) {
  StreamRig rig;
  TestLane lane = rig.Make(std::vector<uint64_t>(4, 4096), 2);
  rig.Open(lane);
  lane.client->Capture();
  for (uint32_t place = 0; place < 4; ++place) {
    ASSERT_OK(rig.StepPlace(lane, place));
  }
  rig.streamer().Fail(lane.plan, absl::AbortedError("gone"));
  for (int i = 0; i < 40; ++i) {
    const uint32_t place = static_cast<uint32_t>(i) % 4;
    const absl::Status status = lane.client->StagePlace(place);
    lane.client->DonePlace(place);
    ASSERT_TRUE(status.ok() || absl::IsAborted(status)) << status.ToString();
  }
}

class StreamerDeadline : public ::testing::Test {
 protected:
  // Lets time pass until the lane has its fault.
  void PassTime(TestLane& lane) {
    EXPECT_TRUE(testing::Until([&] {
      clock_.Advance(20);
      rig_.streamer().SetShare(lane.plan, {});  // It looks, though it slept.
      return rig_.faults(lane.plan) > 0;
    }));
  }

  // A client sees that its group is there before the streamer does, for whom no
  // time may pass meanwhile.
  void AwaitLoad(const TestLane& lane) {
    ASSERT_TRUE(
        testing::Until([&] { return rig_.Stats(lane.plan).loads == 1; }));
  }

  HandClock clock_;
  StreamRig rig_{{.clock = &clock_}};
};

TEST_F(StreamerDeadline, AnImageThatNeverComesIsNamed) {
  TestLane lane = rig_.Make({4096, 4096}, 2);
  rig_.Open(lane, false);
  rig_.HostReady(lane, 0);
  ASSERT_OK(rig_.Step(lane, 0));
  AwaitLoad(lane);
  auto waiting =
      std::async(std::launch::async, [&] { return lane.client->Stage(1); });
  PassTime(lane);
  EXPECT_THAT(waiting.get(), StatusIs(absl::StatusCode::kDeadlineExceeded,
                                      AllOf(HasSubstr("streamed group 1"),
                                            HasSubstr("image on the host"))));
}

// SIGSTOP and SIGCONT, or a machine that slept.
TEST_F(StreamerDeadline, TimeInWhichHoistdStoodStillIsNoWait) {
  TestLane lane = rig_.Make({4096, 4096}, 2);
  rig_.Open(lane, false);
  rig_.HostReady(lane, 0);
  ASSERT_OK(rig_.Step(lane, 0));
  AwaitLoad(lane);
  lane.client->Announce(1);
  // What was announced before the second of these opens has been looked at.
  for (int i = 0; i < 2; ++i) {
    TestLane other = rig_.Make({4096}, 1);
    rig_.Open(other, false);
  }
  clock_.Advance(10'000);
  rig_.HostReady(lane, 1);
  EXPECT_OK(lane.client->Stage(1));
  EXPECT_EQ(rig_.faults(lane.plan), 0);
}

TEST_F(StreamerDeadline, AGroupInTheSamePlaceThatIsNotDoneIsNamed) {
  TestLane lane = rig_.Make(std::vector<uint64_t>(3, 4096), 1);
  rig_.Open(lane);
  ASSERT_OK(lane.client->Stage(0));
  AwaitLoad(lane);
  auto waiting =
      std::async(std::launch::async, [&] { return lane.client->Stage(1); });
  PassTime(lane);
  EXPECT_THAT(waiting.get(),
              StatusIs(absl::StatusCode::kDeadlineExceeded,
                       HasSubstr("group 0 in the same place is not done")));
}

TEST_F(StreamerDeadline, AGraphsWaitHasOneToo) {
  TestLane lane = rig_.Make(std::vector<uint64_t>(3, 4096), 1);
  rig_.Open(lane, false);
  lane.client->Capture();
  auto waiting = std::async(std::launch::async,
                            [&] { return lane.client->StagePlace(2); });
  PassTime(lane);
  EXPECT_THAT(waiting.get(), StatusIs(absl::StatusCode::kDeadlineExceeded,
                                      HasSubstr("streamed group 2")));
}

TEST_F(StreamerDeadline, WhoWaitsForNothingHasNone) {
  TestLane lane = rig_.Make({4096, 4096}, 2);
  TestLane late = rig_.Make({4096}, 1);
  rig_.Open(lane, false);
  rig_.Open(late, false);
  late.client->Announce(0);
  PassTime(late);
  EXPECT_EQ(rig_.faults(lane.plan), 0);
}

}  // namespace hoistd::testing::fault_test
