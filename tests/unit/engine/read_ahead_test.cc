#include "daemon/engine/read_ahead.h"

#include "gmock/gmock.h"
#include "gtest/gtest.h"

namespace hoistd::read_ahead_test {

using ::testing::ElementsAre;
using ::testing::IsEmpty;
using ::testing::SizeIs;

constexpr uint64_t kBytes = 4096;
constexpr absl::Duration kStep = absl::Milliseconds(1);

// `streamed` groups that a pass names in turn, with the indexes 1, 2, ...;
// group 0 is resident.
PlanGrant Grant(uint32_t streamed) {
  PlanGrant grant;
  for (uint32_t g = 0; g <= streamed; ++g) {
    PlannedGroup group;
    group.group = GroupIndex(g);
    group.resident = g == 0;
    group.image_bytes = kBytes;
    grant.groups.push_back(group);
    if (g > 0) grant.lane_order.push_back(g - 1);
  }
  return grant;
}

class ReadAheadTest : public ::testing::Test {
 protected:
  absl::Time now_ = absl::UnixEpoch() + absl::Hours(1);
};

TEST_F(ReadAheadTest, WhatFitsIsAskedForOnceAndStays) {
  ReadAhead ahead(Grant(4), 4 * kBytes);
  EXPECT_TRUE(ahead.holds_all());
  EXPECT_THAT(ahead.Wanted(now_), ElementsAre(GroupIndex(1), GroupIndex(2),
                                              GroupIndex(3), GroupIndex(4)));
  EXPECT_THAT(ahead.Wanted(now_), IsEmpty());
}

TEST_F(ReadAheadTest, LaneNumbersAreRanksOfStreamedGroups) {
  const ReadAhead ahead(Grant(3), 0);
  EXPECT_EQ(ahead.GroupOf(0), GroupIndex(1));
  EXPECT_EQ(ahead.LaneOf(GroupIndex(3)), 2u);
  EXPECT_FALSE(ahead.LaneOf(GroupIndex(0)).has_value());
}

TEST_F(ReadAheadTest, TheWindowStaysWithinTheHostsShare) {
  ReadAhead ahead(Grant(20), 3 * kBytes);
  EXPECT_FALSE(ahead.holds_all());
  EXPECT_THAT(ahead.Wanted(now_), SizeIs(3));
  for (uint32_t i = 0; i < 60; ++i) {
    ahead.Used(i % 20, kStep);
    EXPECT_THAT(ahead.Wanted(now_), ElementsAre(GroupIndex((i + 3) % 20 + 1)));
    EXPECT_THAT(ahead.Wanted(now_), IsEmpty());
  }
}

TEST_F(ReadAheadTest, OneGroupIsAskedForHoweverLittleRoomThereIs) {
  ReadAhead ahead(Grant(3), 1);
  EXPECT_THAT(ahead.Wanted(now_), SizeIs(1));
  ahead.Used(0, kStep);
  EXPECT_THAT(ahead.Wanted(now_), ElementsAre(GroupIndex(2)));
}

TEST_F(ReadAheadTest, SlowReadsDeepenTheWindowAndFastOnesDoNot) {
  ReadAhead slow(Grant(100), 50 * kBytes);
  ReadAhead fast(Grant(100), 50 * kBytes);
  for (uint32_t i = 0; i < 60; ++i) {
    slow.Wanted(now_);
    fast.Wanted(now_);
    slow.Arrived(i, now_ + absl::Milliseconds(30));
    fast.Arrived(i, now_);
    slow.Used(i, kStep);
    fast.Used(i, kStep);
  }
  EXPECT_GT(slow.depth(), 25u);
  EXPECT_LT(fast.depth(), 6u);
}

TEST_F(ReadAheadTest, DepthIsNeverMoreThanThePass) {
  EXPECT_EQ(ReadAhead(Grant(1), 1).depth(), 1u);
  EXPECT_EQ(ReadAhead(Grant(2), 1).depth(), 2u);
}

TEST_F(ReadAheadTest, AClientThatLeavesTheOrderTakesTheWindowAlong) {
  ReadAhead ahead(Grant(20), 4 * kBytes);
  ahead.Wanted(now_);
  for (uint32_t i = 0; i < 4; ++i) ahead.Used(i, kStep);
  ahead.Missed(10);
  EXPECT_THAT(ahead.Wanted(now_), ElementsAre(GroupIndex(11), GroupIndex(12),
                                              GroupIndex(13), GroupIndex(14)));
}

TEST_F(ReadAheadTest, WhatWasLeftBehindMakesRoom) {
  ReadAhead ahead(Grant(20), 4 * kBytes);
  ahead.Wanted(now_);
  for (uint32_t i = 0; i < 3; ++i) ahead.Arrived(i, now_);  // 3 is on its way.
  EXPECT_THAT(ahead.Strays(), IsEmpty());
  ahead.Missed(10);
  EXPECT_THAT(ahead.Strays(), ElementsAre(0, 1, 2));
  EXPECT_THAT(ahead.Wanted(now_), IsEmpty());
  for (uint32_t i = 0; i < 3; ++i) ahead.Returned(i);
  EXPECT_THAT(ahead.Strays(), IsEmpty());
  EXPECT_THAT(ahead.Wanted(now_),
              ElementsAre(GroupIndex(11), GroupIndex(12), GroupIndex(13)));
}

// All of them are needed soon, but not before what is missing.
TEST_F(ReadAheadTest, WhatIsNeededLaterThanAllThatFitsIsTakenBack) {
  ReadAhead ahead(Grant(6), 3 * kBytes);
  EXPECT_THAT(ahead.Wanted(now_), SizeIs(3));
  for (LaneGroup group = 0; group < 3; ++group) ahead.Arrived(group, now_);
  EXPECT_THAT(ahead.Strays(), IsEmpty());
  ahead.Missed(5);
  EXPECT_THAT(ahead.Strays(), ElementsAre(2));
  ahead.Returned(2);
  EXPECT_THAT(ahead.Wanted(now_), ElementsAre(GroupIndex(6)));
  EXPECT_THAT(ahead.Strays(), IsEmpty());
}

TEST_F(ReadAheadTest, WhereTheHostBecomesCrowdedNotAllIsHeld) {
  ReadAhead ahead(Grant(6), 6 * kBytes);
  ASSERT_TRUE(ahead.holds_all());
  EXPECT_THAT(ahead.Wanted(now_), SizeIs(6));
  for (LaneGroup group = 0; group < 5; ++group) ahead.Arrived(group, now_);
  ahead.Missed(5);
  EXPECT_THAT(ahead.Strays(), IsEmpty());
  EXPECT_TRUE(ahead.Crowded(0));  // There is room for five.
  EXPECT_FALSE(ahead.holds_all());
  EXPECT_THAT(ahead.Strays(), ElementsAre(4));
  ahead.Returned(4);
  EXPECT_FALSE(ahead.Crowded(2 * kBytes));
  EXPECT_THAT(ahead.Strays(), ElementsAre(1, 2, 3));
}

TEST_F(ReadAheadTest, AMissedGroupOutsideTheWindowDoesNotCountAsASlowRead) {
  ReadAhead ahead(Grant(100), 4 * kBytes);
  ahead.Wanted(now_);
  const size_t before = ahead.depth();
  ahead.Missed(50);
  EXPECT_THAT(ahead.Wanted(now_), IsEmpty());  // The window is full.
  ahead.Arrived(50, now_ + absl::Milliseconds(1));
  EXPECT_LE(ahead.depth(), before);
}

}  // namespace hoistd::read_ahead_test
