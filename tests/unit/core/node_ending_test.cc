// Models that end with their session: what a worker puts aside, and nobody else
// has any use for.
#include <string>

#include "daemon/core/registry.h"
#include "daemon/model/model_name.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "tests/support/node_rig.h"
#include "tests/support/status_matchers.h"

namespace hoistd::node_ending_test {

using ::testing::HasSubstr;
using ::testing::IsEmpty;
using testing::kPage;
using testing::NodeRig;
using ::testing::SizeIs;
using testing::StatusIs;

constexpr auto kPrecondition = absl::StatusCode::kFailedPrecondition;

class NodeEndingTest : public ::testing::Test {
 protected:
  GroupKey Aside(const std::string& group, uint64_t pages = 2) {
    return rig_.Published(session_, NameOfSession(session_, "acts"), group,
                          pages);
  }
  absl::Status Park(SessionId session, GroupKey key) {
    return rig_.Prefetch(session, key.model, {key.group.number()}, OnDisk());
  }
  size_t models() { return rig_.node().copies().models().size(); }

  NodeRig rig_{{.can_spill = true, .saves_at_once = true}};
  const SessionId session_ = rig_.Open(1);
};

TEST_F(NodeEndingTest, EndsWithItsSessionInEveryTier) {
  const GroupKey first = Aside("a");
  Aside("b");
  ASSERT_OK(Park(session_, first));
  rig_.FinishAll();
  rig_.Close(session_);
  EXPECT_EQ(models(), 0u);
  EXPECT_THAT(rig_.spills(), IsEmpty());
  EXPECT_EQ(rig_.TierOf(OnHost()).used_bytes, 0u);
  EXPECT_EQ(rig_.counters().models_forgotten, 0u);
}

TEST_F(NodeEndingTest, WhatOutlivesItsSessionStays) {
  rig_.Published(session_, "weights", "a", 2);
  rig_.FinishAll();
  rig_.Close(session_);
  EXPECT_EQ(models(), 1u);
}

// It is written to no disk that is not told to have it.
TEST_F(NodeEndingTest, IsOnTheDiskAloneWhenItIsToldToBe) {
  const GroupKey key = Aside("a");
  EXPECT_THAT(rig_.Moving(), IsEmpty());
  Effects effects;
  EXPECT_EQ(rig_.node().supply().SaveAll(rig_.now, effects), 0u);
  ASSERT_OK(Park(session_, key));
  ASSERT_THAT(rig_.Moving<HostToSpill>(), SizeIs(1));
  EXPECT_TRUE(rig_.Has(key, OnHost()));
  rig_.FinishAll();
  EXPECT_FALSE(rig_.Has(key, OnHost()));
  EXPECT_EQ(rig_.counters().host_evictions_by_workers, 1u);
  EXPECT_THAT(rig_.spills(), SizeIs(1));
  ASSERT_OK(rig_.Prefetch(session_, key.model, {0}, OnHost()));
  rig_.FinishAll();
  EXPECT_TRUE(rig_.Has(key, OnHost()));
  // It lies on the disk already.
  ASSERT_OK(Park(session_, key));
  EXPECT_FALSE(rig_.Has(key, OnHost()));
  EXPECT_THAT(rig_.Moving(), IsEmpty());
  EXPECT_EQ(rig_.counters().host_evictions_by_workers, 2u);
  EXPECT_EQ(rig_.counters().host_evictions, 0u);
}

TEST_F(NodeEndingTest, WhatIsBeingCopiedStaysOnTheHostAndIsNamed) {
  const GroupKey key = Aside("a");
  rig_.Stage(session_, key);
  EXPECT_THAT(Park(session_, key),
              StatusIs(kPrecondition, HasSubstr("acts/a is being copied")));
  rig_.FinishAll();
  EXPECT_TRUE(rig_.Has(key, OnHost()));
  ASSERT_OK(Park(session_, key));
  rig_.FinishAll();
  EXPECT_FALSE(rig_.Has(key, OnHost()));
}

TEST_F(NodeEndingTest, OnlyItsOwnSessionMayAndOnlyOfWhatEndsWithIt) {
  const GroupKey weights = rig_.Published(session_, "weights", "a", 2);
  rig_.FinishAll();
  EXPECT_THAT(Park(session_, weights),
              StatusIs(absl::StatusCode::kPermissionDenied,
                       HasSubstr("weights does not")));
  const GroupKey key = Aside("a");
  EXPECT_THAT(Park(rig_.Open(1), key),
              StatusIs(absl::StatusCode::kPermissionDenied));
  EXPECT_THAT(Park(session_, {key.model, GroupIndex(9)}),
              StatusIs(absl::StatusCode::kNotFound));
}

TEST_F(NodeEndingTest, WithoutADiskItStaysAndSaysWhatWouldDo) {
  NodeRig rig({.can_spill = false});
  const SessionId session = rig.Open(1);
  const GroupKey key =
      rig.Published(session, NameOfSession(session, "acts"), "a", 2);
  EXPECT_THAT(rig.Prefetch(session, key.model, {0}, OnDisk()),
              StatusIs(kPrecondition, HasSubstr("disk.spill_dir")));
  EXPECT_TRUE(rig.Has(key, OnHost()));
}

TEST_F(NodeEndingTest, ThatIsUsedByAnotherOfTheUserEndsWithThatUse) {
  const GroupKey key = Aside("a");
  const SessionId other = rig_.Open(1);
  const LeaseId lease = rig_.StageNow(other, key);
  rig_.Close(session_);
  EXPECT_EQ(models(), 1u);
  ASSERT_OK(rig_.Release(other, lease));
  EXPECT_EQ(models(), 0u);
}

TEST_F(NodeEndingTest, ThatIsBeingWrittenWhenItsSessionEndsLeavesNothing) {
  ASSERT_OK(Park(session_, Aside("a")));
  rig_.Close(session_);
  EXPECT_EQ(models(), 0u);
  rig_.FinishAll();
  EXPECT_THAT(rig_.spills(), IsEmpty());
  EXPECT_EQ(rig_.TierOf(OnHost()).used_bytes, 0u);
}

TEST_F(NodeEndingTest, GoesOnWithItsSessionUnderTheNextHoistd) {
  const GroupKey key = Aside("a");
  ASSERT_OK(Park(session_, key));
  rig_.FinishAll();
  ASSERT_TRUE(rig_.Die());
  EXPECT_EQ(models(), 1u);
  rig_.Close(session_);
  EXPECT_EQ(models(), 0u);
}

}  // namespace hoistd::node_ending_test
