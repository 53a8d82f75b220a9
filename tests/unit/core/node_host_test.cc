// Bytes of files lie on the host once, whatever groups want them.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "tests/support/node_rig.h"
#include "tests/support/status_matchers.h"

namespace hoistd::node_host_test {

using ::hoistd::testing::kPage;
using ::hoistd::testing::NodeRig;
using ::testing::ElementsAre;
using ::testing::IsEmpty;
using ::testing::SizeIs;

class NodeHost : public ::testing::Test {
 protected:
  // Twelve pages of one file, as three blocks and as leaves of one page or two.
  ModelId Blocks(SessionId session, const std::string& name = "blocks") {
    return rig_.AddGrouping(session, name, 1, {{{0, 4}}, {{4, 4}}, {{8, 4}}});
  }
  ModelId Leaves(SessionId session, const std::string& name = "leaves") {
    return rig_.AddGrouping(session, name, 1,
                            {{{0, 1}}, {{1, 2}}, {{3, 1}}, {{4, 2}}, {{6, 2}}});
  }
  void Load(ModelId model, uint32_t groups) {
    for (uint32_t g = 0; g < groups; ++g) {
      rig_.Bring({model, GroupIndex(g)}, OnHost(), /*pin=*/false);
    }
    rig_.FinishAll();
  }
  uint64_t Used() const { return rig_.TierOf(OnHost()).used_bytes / kPage; }
  uint64_t Shared() const { return rig_.TierOf(OnHost()).shared_bytes / kPage; }
  uint64_t Read() const { return rig_.counters().file_read_bytes / kPage; }

  NodeRig rig_{{.host_pages = 20, .device_pages = {16}}};
  SessionId session_ = rig_.Open();
};

TEST_F(NodeHost, LeavesOfWhatIsThereByBlockAreThere) {
  Load(Blocks(session_), 3);
  EXPECT_EQ(Used(), 12u);
  const ModelId leaves = Leaves(session_);
  Load(leaves, 5);
  EXPECT_TRUE(rig_.Has({leaves, GroupIndex(4)}, OnHost()));
  EXPECT_EQ(Used(), 12u);
  EXPECT_EQ(Read(), 12u);
  EXPECT_EQ(Shared(), 8u);
}

TEST_F(NodeHost, ABlockIsReadWhereItsLeavesAreNotThere) {
  const ModelId leaves = Leaves(session_);
  rig_.Bring({leaves, GroupIndex(1)}, OnHost(), /*pin=*/false);
  rig_.FinishAll();
  const ModelId blocks = Blocks(session_);
  rig_.Bring({blocks, GroupIndex(0)}, OnHost(), /*pin=*/false);
  ASSERT_THAT(rig_.Moving(), SizeIs(1));
  EXPECT_THAT(rig_.TheWay<FilesToHost>().reads, SizeIs(2));
  rig_.FinishAll();
  EXPECT_EQ(Read(), 4u);
  EXPECT_EQ(Used(), 4u);
  // The copy to the device takes all of it, in as many ranges as it must.
  rig_.Stage(session_, {blocks, GroupIndex(0)});
  ASSERT_THAT(rig_.Moving<HostToDevice>(), SizeIs(1));
  EXPECT_GE(rig_.TheWay<HostToDevice>().from.size(), 2u);
  rig_.FinishAll();
}

// What comes behind its neighbour lies behind it, so both are one range.
TEST_F(NodeHost, NeighboursLieSideBySide) {
  Load(Leaves(session_), 5);
  const ModelId blocks = Blocks(session_);
  rig_.Bring({blocks, GroupIndex(0)}, OnHost(), /*pin=*/false);
  EXPECT_THAT(rig_.Moving(), IsEmpty());
  rig_.Stage(session_, {blocks, GroupIndex(0)});
  ASSERT_THAT(rig_.Moving<HostToDevice>(), SizeIs(1));
  EXPECT_THAT(rig_.TheWay<HostToDevice>().from, SizeIs(1));
  rig_.FinishAll();
}

TEST_F(NodeHost, TwoThatWantTheSameBytesAtOnceReadThemOnce) {
  const ModelId blocks = Blocks(session_);
  const ModelId leaves = Leaves(session_);
  const RequestId block = rig_.Stage(session_, {blocks, GroupIndex(0)});
  const RequestId leaf = rig_.Stage(session_, {leaves, GroupIndex(1)});
  EXPECT_THAT(rig_.Moving(), SizeIs(1));
  rig_.FinishAll();
  rig_.LeaseOf(block);
  rig_.LeaseOf(leaf);
  EXPECT_EQ(Read(), 4u);
}

TEST_F(NodeHost, AFailedReadFailsAllWhoWaitForItAndIsTriedAgain) {
  const ModelId blocks = Blocks(session_);
  const ModelId leaves = Leaves(session_);
  const RequestId block = rig_.Stage(session_, {blocks, GroupIndex(0)});
  const RequestId leaf = rig_.Stage(session_, {leaves, GroupIndex(1)});
  rig_.Finish<FilesToHost>(absl::UnavailableError("EIO"));
  for (const RequestId request : {block, leaf}) {
    EXPECT_THAT(rig_.AnswerTo(request)->status,
                testing::StatusIs(absl::StatusCode::kUnavailable));
  }
  EXPECT_EQ(Used(), 0u);
  rig_.StageNow(session_, {leaves, GroupIndex(1)});
  EXPECT_EQ(Used(), 2u);
}

// A prefetch of one is what somebody waits for as another.
TEST_F(NodeHost, WhoWaitsHurriesWhatOthersOnlyPrefetch) {
  const ModelId blocks = Blocks(session_);
  const ModelId leaves = Leaves(session_);
  ASSERT_OK(rig_.Prefetch(session_, blocks, {0}, OnHost()));
  ASSERT_THAT(rig_.Moving(), SizeIs(1));
  rig_.Stage(session_, {leaves, GroupIndex(1)});
  EXPECT_THAT(rig_.hurried(), ElementsAre(rig_.Moving()[0]));
}

TEST_F(NodeHost, AGroupThatOthersShareIsNotEvictedWhileOneIsHeld) {
  const ModelId blocks = Blocks(session_);
  const ModelId leaves = Leaves(session_);
  Load(blocks, 3);
  const PlanGrant plan = rig_.PlanOf(
      rig_.SetPlan(session_, leaves, {0, 1, 2, 3, 4}, /*budget_pages=*/4));
  std::vector<uint32_t> streamed;
  for (const PlannedGroup& group : plan.groups) {
    if (!group.resident) streamed.push_back(group.group.number());
  }
  rig_.Hold(plan.id, streamed);
  EXPECT_EQ(Read(), 12u) << "all is there";
  // Room for this can be had from the third block alone.
  const ModelId other = rig_.AddModel(session_, "other", {12});
  rig_.Bring({other, GroupIndex(0)}, OnHost(), /*pin=*/false);
  rig_.FinishAll();
  EXPECT_TRUE(rig_.Has({other, GroupIndex(0)}, OnHost()));
  EXPECT_FALSE(rig_.Has({blocks, GroupIndex(2)}, OnHost()));
}

TEST_F(NodeHost, AnEvictedGroupLeavesWhatOthersUse) {
  const ModelId blocks = Blocks(session_);
  const ModelId leaves = Leaves(session_);
  Load(blocks, 3);
  Load(leaves, 2);
  rig_.Evict("1:blocks", OnHost());
  EXPECT_EQ(rig_.StateOf({blocks, GroupIndex(0)}, OnHost()),
            Residency::kAbsent);
  EXPECT_TRUE(rig_.Has({leaves, GroupIndex(1)}, OnHost()));
  EXPECT_EQ(Used(), 4u) << "of the first block";
  rig_.Evict("1:leaves", OnHost());
  EXPECT_EQ(Used(), 0u);
}

TEST_F(NodeHost, UsersShareOnlyWhatEverybodyMayRead) {
  const SessionId other = rig_.Open(2);
  Load(Blocks(session_), 3);
  Load(Blocks(other), 1);
  EXPECT_EQ(Used(), 16u);
  EXPECT_EQ(Shared(), 0u);
}

TEST_F(NodeHost, WhatLiesTwiceOnADeviceIsTold) {
  const ModelId blocks = Blocks(session_);
  const ModelId leaves = Leaves(session_);
  rig_.StageNow(session_, {blocks, GroupIndex(0)});
  EXPECT_EQ(rig_.TierOf(NodeRig::FirstDevice()).doubled_bytes, 0u);
  rig_.StageNow(session_, {leaves, GroupIndex(1)});
  rig_.StageNow(session_, {leaves, GroupIndex(3)});
  EXPECT_EQ(rig_.TierOf(NodeRig::FirstDevice()).doubled_bytes, 2 * kPage);
}

// Images that cannot leave lie between what is free.
TEST(NodeHostScattered, AGroupGoesWhereThereIsRoomInSum) {
  NodeRig rig({.host_pages = 5, .device_pages = {4}, .can_spill = false});
  const SessionId session = rig.Open();
  for (const char* name : {"a", "b", "c"}) rig.Published(session, name, "g", 1);
  ASSERT_OK(rig.Forget((*rig.node().tenure().Find(session, "b"))->id));
  const ModelId model = rig.AddModel(session, "m", {3});
  const RequestId stage = rig.Stage(session, {model, GroupIndex(0)});
  ASSERT_THAT(rig.Moving(), SizeIs(1));
  EXPECT_THAT(rig.TheWay<FilesToHost>().reads, SizeIs(2));
  rig.FinishAll();
  rig.LeaseOf(stage);
  EXPECT_EQ(rig.TierOf(OnHost()).used_bytes, 5 * kPage);
}

// What would not be enough need not leave.
TEST(NodeHostScattered, NobodyLeavesForWhatDoesNotFit) {
  NodeRig rig({.host_pages = 5, .device_pages = {4}, .can_spill = false});
  const SessionId session = rig.Open();
  for (const char* name : {"a", "b"}) rig.Published(session, name, "g", 1);
  const ModelId small = rig.AddModel(session, "small", {1});
  rig.Stage(session, {small, GroupIndex(0)});
  rig.FinishAll();
  const ModelId large = rig.AddModel(session, "large", {4});
  rig.Stage(session, {large, GroupIndex(0)});
  EXPECT_THAT(rig.Moving(), IsEmpty());
  EXPECT_EQ(rig.TierOf(OnHost()).used_bytes, 3 * kPage);
}

// A joined tensor of parts that lie apart, with the parts there by leaf.
TEST_F(NodeHost, JoinedPartsAreStoredOnce) {
  Load(Leaves(session_), 5);
  const ModelId joined = rig_.AddGrouping(
      session_, "joined", 1, {{{6, 1}, {0, 1}, {3, 2}}, {{1, 2}, {7, 1}}});
  Load(joined, 2);
  EXPECT_EQ(Used(), 8u);
  EXPECT_EQ(Read(), 8u);
  rig_.StageNow(session_, {joined, GroupIndex(0)});
}

}  // namespace hoistd::node_host_test
