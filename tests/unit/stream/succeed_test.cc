// A streamer that goes on with the lanes of one that is gone.
#include <random>

#include "absl/strings/str_cat.h"
#include "gmock/gmock.h"
#include "tests/support/status_matchers.h"
#include "tests/unit/stream/rig.h"

namespace hoistd::testing::succeed_test {

using ::testing::HasSubstr;

class SucceedingStreamer : public ::testing::Test {
 protected:
  // Twelve groups in three places.
  void Begin() {
    lane_ = rig_.Make(std::vector<uint64_t>(12, 32 * kKiB), 3);
    rig_.Open(lane_);
  }
  void Succeed() { rig_.Succeed({&lane_}); }

  StreamRig rig_;
  TestLane lane_;
};

TEST_F(SucceedingStreamer, GoesOnAtAnyPosition) {
  Begin();
  for (uint64_t position = 0; position < 60; ++position) {
    ASSERT_OK(rig_.Step(lane_, position));
    Succeed();
  }
  EXPECT_EQ(rig_.faults(lane_.plan), 0);
}

TEST_F(SucceedingStreamer, LeavesWhatIsInUseWhereItIs) {
  Begin();
  ASSERT_OK(lane_.client->Stage(0));
  ASSERT_OK(lane_.client->Stage(1));
  Succeed();
  EXPECT_TRUE(rig_.Right(lane_, 0));
  EXPECT_TRUE(rig_.Right(lane_, 1));
  // What comes next needs the third place alone.
  ASSERT_OK(lane_.client->Stage(2));
  EXPECT_TRUE(rig_.Right(lane_, 2));
  EXPECT_TRUE(rig_.Right(lane_, 0));
  EXPECT_TRUE(rig_.Right(lane_, 1));
  for (const uint64_t position : {1, 0, 2}) lane_.client->Done(position);
  for (uint64_t position = 3; position < 30; ++position) {
    ASSERT_OK(rig_.Step(lane_, position));
  }
}

TEST_F(SucceedingStreamer, ServesWhatWasAskedForWhileNobodyWas) {
  Begin();
  ASSERT_OK(rig_.Step(lane_, 0));
  // They have been staged, and only their words are waited for.
  for (uint64_t position = 1; position < 6; ++position) {
    lane_.client->Announce(position);
  }
  Succeed();
  for (uint64_t position = 1; position < 6; ++position) {
    ASSERT_OK(lane_.client->Stage(position));
    EXPECT_TRUE(rig_.Right(lane_, lane_.client->GroupAt(position)));
    lane_.client->Done(position);
    Succeed();
  }
}

TEST_F(SucceedingStreamer, KnowsWhatWasSkippedThoughItWasReady) {
  Begin();
  ASSERT_OK(rig_.Step(lane_, 0));
  // 1, 2 and 3 lie in the ring, are passed over, and come again a pass later.
  EXPECT_TRUE(
      testing::Until([&] { return rig_.Stats(lane_.plan).loads >= 4; }));
  ASSERT_OK(lane_.client->Stage(4));
  Succeed();
  EXPECT_TRUE(rig_.Right(lane_, 4));
  lane_.client->Done(4);
  for (uint64_t position = 5; position < 40; ++position) {
    ASSERT_OK(rig_.Step(lane_, position));
  }
  EXPECT_EQ(rig_.faults(lane_.plan), 0);
}

TEST_F(SucceedingStreamer, IsRightWhateverTheClientLeavesOut) {
  Begin();
  std::mt19937 random(7);
  uint64_t position = 0;
  for (int i = 0; i < 400; ++i) {
    ASSERT_OK(rig_.Step(lane_, position)) << i;
    if (random() % 3 == 0) {
      if (random() % 2 == 0) {
        // With a group in use.
        ASSERT_OK(lane_.client->Stage(position + 1));
        Succeed();
        ASSERT_TRUE(rig_.Right(lane_, lane_.client->GroupAt(position + 1)));
        lane_.client->Done(++position);
      } else {
        Succeed();
      }
    }
    position += 1 + (random() % 4 == 0 ? random() % 11 : 0);
  }
  EXPECT_EQ(rig_.faults(lane_.plan), 0);
}

TEST_F(SucceedingStreamer, GoesOnWithGraphs) {
  Begin();
  for (uint64_t position = 0; position < 5; ++position) {
    ASSERT_OK(rig_.Step(lane_, position));
  }
  lane_.client->Capture();
  std::mt19937 random(7);
  for (uint32_t i = 5; i < 150; ++i) {
    if (random() % 4 == 0) Succeed();
    if (random() % 4 == 0) i += random() % 5;
    const uint32_t place = i % 12;
    ASSERT_OK(lane_.client->StagePlace(place)) << i;
    if (random() % 8 == 0) Succeed();
    ASSERT_TRUE(rig_.Right(lane_, lane_.spec.order[place])) << i;
    lane_.client->DonePlace(place);
  }
  // Told by the streamer's thread, after its first look at the lane.
  EXPECT_TRUE(testing::Until([&] { return rig_.Stats(lane_.plan).captured; }));
  EXPECT_EQ(rig_.faults(lane_.plan), 0);
}

TEST_F(SucceedingStreamer, BelievesNoWordThatCouldHoldItUp) {
  std::mt19937 random(11);
  for (int i = 0; i < 30; ++i) {
    Begin();
    TestLane other = rig_.Make(std::vector<uint64_t>(4, 32 * kKiB), 2);
    rig_.Open(other);
    ASSERT_OK(rig_.Step(lane_, 0));
    ASSERT_OK(rig_.Step(other, 0));
    hoist::lane::Header& header = lane_.client->header();
    const auto word = [&]() -> uint32_t {
      return random() % 2 == 0 ? uint32_t(random()) : 1 + random() % 30;
    };
    header.served.store(
        random() % 2 == 0 ? word() : uint64_t{word()} << (random() % 33));
    if (random() % 2 == 0) header.captured_from.store(word());
    header.tail.store(word());
    for (uint32_t group = 0; group < 12; ++group) {
      lane_.client->group(group).ready.store(word());
      lane_.client->group(group).done.store(word());
      lane_.client->group(group).flag.store(random() % 4);
    }
    rig_.Succeed({&lane_, &other});
    for (uint64_t position = 1; position < 20; ++position) {
      ASSERT_OK(rig_.Step(other, position));
    }
    rig_.Close(lane_.plan);
    rig_.Close(other.plan);
    rig_.Reuse();
  }
}

TEST_F(SucceedingStreamer, RefusesWhatIsNoLaneOfItsPlan) {
  Begin();
  const auto refused = [&] {
    return rig_.TrySucceed(lane_).code() == absl::StatusCode::kInvalidArgument;
  };
  lane_.client->header().order_length = 5;
  EXPECT_TRUE(refused());
  Begin();
  lane_.client->header().adoption = hoist::lane::kAdoption + 1;
  EXPECT_TRUE(refused());
  Begin();
  lane_.client->header().version = hoist::lane::kVersion + 1;
  EXPECT_TRUE(refused());
}

TEST_F(SucceedingStreamer, TellsWhoHasALaneOfAnotherVersion) {
  const auto told = [&](uint32_t theirs, uint32_t ours) {
    const absl::Status refused = rig_.TrySucceed(lane_);
    EXPECT_EQ(refused.code(), absl::StatusCode::kInvalidArgument);
    const absl::Status fault = lane_.client->Fault();
    EXPECT_EQ(fault.message(), refused.message());
    EXPECT_THAT(fault, StatusIs(absl::StatusCode::kAborted,
                                HasSubstr(absl::StrCat(" ", theirs, ", and"))));
    EXPECT_THAT(fault, StatusIs(absl::StatusCode::kAborted,
                                HasSubstr(absl::StrCat("with ", ours, ";"))));
  };
  Begin();
  lane_.client->header().version = hoist::lane::kVersion + 41;
  told(hoist::lane::kVersion + 41, hoist::lane::kVersion);
  Begin();
  lane_.client->header().adoption = hoist::lane::kAdoption + 41;
  told(hoist::lane::kAdoption + 41, hoist::lane::kAdoption);
  // What is no lane is not written to.
  Begin();
  lane_.client->header().magic = 0;
  EXPECT_FALSE(rig_.TrySucceed(lane_).ok());
  EXPECT_OK(lane_.client->Fault());
}

TEST_F(SucceedingStreamer, EndsAPlanThatHadEnded) {
  Begin();
  ASSERT_OK(rig_.Step(lane_, 0));
  rig_.streamer().Fail(lane_.plan, absl::DataLossError("gone"));
  EXPECT_TRUE(testing::Until([&] { return rig_.faults(lane_.plan) == 1; }));
  Succeed();
  EXPECT_TRUE(testing::Until([&] { return rig_.faults(lane_.plan) == 2; }));
  EXPECT_THAT(lane_.client->Fault(), StatusIs(absl::StatusCode::kDataLoss));
}

}  // namespace hoistd::testing::succeed_test
