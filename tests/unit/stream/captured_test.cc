// The captured form: flags that are reset, and a GPU that says where it stands.
#include <random>

#include "gmock/gmock.h"
#include "tests/support/status_matchers.h"
#include "tests/unit/stream/rig.h"

namespace hoistd::testing::captured_test {

class CapturedLane : public ::testing::Test {
 protected:
  // Eight groups in three places, and some positions in the counted form.
  void Begin(uint64_t counted) {
    lane_ = rig_.Make(std::vector<uint64_t>(8, 32 * kKiB), 3);
    rig_.Open(lane_);
    for (uint64_t position = 0; position < counted; ++position) {
      ASSERT_OK(rig_.Step(lane_, position));
    }
    lane_.client->Capture();
  }

  StreamRig rig_;
  TestLane lane_;
};

TEST_F(CapturedLane, PassesAreRightAndCopiedOnce) {
  Begin(8);
  constexpr int kPasses = 20;
  for (int pass = 0; pass < kPasses; ++pass) {
    for (uint32_t place = 0; place < 8; ++place) {
      ASSERT_OK(rig_.StepPlace(lane_, place)) << pass << " " << place;
    }
  }
  EXPECT_TRUE(testing::Until(
      [&] { return rig_.Stats(lane_.plan).loads == 8 * (kPasses + 1) + 3; }));
  EXPECT_TRUE(testing::Until([&] { return rig_.Stats(lane_.plan).captured; }));
  EXPECT_EQ(rig_.Stats(lane_.plan).skipped, 0u);
}

TEST_F(CapturedLane, ItMayBeginInTheMiddleOfAPass) {
  Begin(3);
  for (uint32_t i = 3; i < 40; ++i) {
    ASSERT_OK(rig_.StepPlace(lane_, i % 8)) << i;
  }
  EXPECT_EQ(rig_.Stats(lane_.plan).skipped, 0u);
}

TEST_F(CapturedLane, WhatWasStagedBeforeIsServedFirst) {
  lane_ = rig_.Make(std::vector<uint64_t>(4, 32 * kKiB), 2);
  rig_.Open(lane_);
  ASSERT_OK(lane_.client->Stage(0));
  ASSERT_OK(lane_.client->Stage(1));
  lane_.client->Capture();
  // The kernels of both still run while the first graph is launched.
  lane_.client->header().want = 3;
  EXPECT_TRUE(testing::Until([&] { return rig_.Stats(lane_.plan).captured; }));
  EXPECT_TRUE(rig_.Right(lane_, 0));
  EXPECT_TRUE(rig_.Right(lane_, 1));
  lane_.client->Done(0);
  lane_.client->Done(1);
  for (uint32_t i = 2; i < 20; ++i) {
    ASSERT_OK(rig_.StepPlace(lane_, i % 4)) << i;
  }
}

TEST_F(CapturedLane, AGraphThatLeavesGroupsOutIsFollowed) {
  Begin(0);
  for (int pass = 0; pass < 20; ++pass) {
    for (const uint32_t place : {1u, 4u, 5u, 7u}) {
      ASSERT_OK(rig_.StepPlace(lane_, place)) << pass << " " << place;
    }
  }
  EXPECT_GT(rig_.Stats(lane_.plan).skipped, 0u);
  EXPECT_EQ(rig_.faults(lane_.plan), 0);
}

TEST_F(CapturedLane, OnePlaceOverAndOverIsServed) {
  Begin(0);
  for (int i = 0; i < 30; ++i) ASSERT_OK(rig_.StepPlace(lane_, 5)) << i;
}

TEST_F(CapturedLane, AGroupThatWasTakenIsNotOverwrittenByAJump) {
  Begin(0);
  ASSERT_OK(lane_.client->StagePlace(0));
  // The graph goes on elsewhere while the kernels of place 0 still run: place 3
  // shares its slot, so it must wait.
  lane_.client->header().want = 4;
  TestLane other = rig_.Make(std::vector<uint64_t>(3, 16 * kKiB), 2);
  rig_.Open(other);
  for (uint64_t position = 0; position < 30; ++position) {
    ASSERT_OK(rig_.Step(other, position));
  }
  EXPECT_TRUE(rig_.Right(lane_, 0));
  EXPECT_EQ(lane_.client->group(3).flag, hoist::lane::kFlagEmpty);
  lane_.client->group(0).flag = hoist::lane::kFlagEmpty;
  lane_.client->group(0).done_flag = 1;
  ASSERT_OK(rig_.StepPlace(lane_, 3));
}

class CapturedSeeds : public ::testing::TestWithParam<uint64_t> {};

TEST_P(CapturedSeeds, AnyWayThroughThePlacesIsRight) {
  SCOPED_TRACE(absl::StrCat("seed ", GetParam()));
  std::mt19937_64 random(GetParam());
  StreamRig rig;
  TestLane lane = rig.Make(std::vector<uint64_t>(7, 24 * kKiB), 3,
                           {0, 1, 2, 3, 1, 4, 5, 6});
  rig.Open(lane);
  for (uint64_t position = 0; position < 5; ++position) {
    ASSERT_OK(rig.Step(lane, position));
  }
  lane.client->Capture();
  uint32_t place = 5;
  for (int i = 0; i < 300; ++i) {
    ASSERT_OK(rig.StepPlace(lane, place)) << "step " << i;
    place = random() % 3 != 0 ? (place + 1) % 8
                              : static_cast<uint32_t>(random() % 8);
  }
  EXPECT_EQ(rig.faults(lane.plan), 0);
}

INSTANTIATE_TEST_SUITE_P(, CapturedSeeds, ::testing::Values(1, 2, 3));

}  // namespace hoistd::testing::captured_test
