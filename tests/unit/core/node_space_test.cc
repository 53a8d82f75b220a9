// Who leaves for whom: eviction, order hints, prefetches, loads, pins.
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "tests/support/node_rig.h"
#include "tests/support/status_matchers.h"

namespace hoistd::node_space_test {

using ::testing::HasSubstr;
using ::testing::IsEmpty;
using testing::IsOk;
using testing::kPage;
using testing::NodeRig;
using testing::NodeRigOptions;
using ::testing::SizeIs;
using testing::StatusIs;

constexpr auto kExhausted = absl::StatusCode::kResourceExhausted;
const TierAt kDevice = NodeRig::FirstDevice();

GroupKey Key(ModelId model, uint32_t group) {
  return {model, GroupIndex(group)};
}

// Stages and releases `key`, a millisecond later than what was before.
void Use(NodeRig& rig, SessionId session, GroupKey key) {
  rig.now += absl::Milliseconds(1);
  ASSERT_OK(rig.Release(session, rig.StageNow(session, key)));
}

TEST(NodeSpace, WhatWasUsedLongestAgoLeavesFirst) {
  NodeRig rig({.device_pages = {3}});
  const SessionId session = rig.Open();
  const ModelId model = rig.AddModel(session, "m", {1, 1, 1, 1});
  for (const uint32_t g : {0u, 1u, 2u, 0u}) Use(rig, session, Key(model, g));
  Use(rig, session, Key(model, 3));
  EXPECT_FALSE(rig.Has(Key(model, 1), kDevice));
  EXPECT_TRUE(rig.Has(Key(model, 0), kDevice));
  EXPECT_TRUE(rig.Has(Key(model, 2), kDevice));
}

// Hits of `rounds` passes over `groups` groups with room for `room`.
uint64_t CyclicHits(bool hint, uint32_t groups, uint64_t room, int rounds) {
  NodeRig rig({.host_pages = 2 * groups, .device_pages = {room}});
  const SessionId session = rig.Open();
  const ModelId model =
      rig.AddModel(session, "m", std::vector<uint64_t>(groups, 1));
  std::vector<uint32_t> order;
  for (uint32_t g = 0; g < groups; ++g) order.push_back(g);
  if (hint) {
    EXPECT_OK(rig.SetOrder(session, model, order));
  }
  for (int round = 0; round < rounds; ++round) {
    for (const uint32_t g : order) Use(rig, session, Key(model, g));
  }
  return rig.counters().stages_resident;
}

TEST(NodeSpace, AnOrderHintBeatsRecencyOnACycle) {
  EXPECT_EQ(CyclicHits(/*hint=*/false, 8, 4, 5), 0u);
  // Belady keeps room-1 of the groups-1 others: 3/7 of 32 stages.
  EXPECT_GE(CyclicHits(/*hint=*/true, 8, 4, 5), 12u);
}

TEST(NodeSpace, WhatIsLeasedPinnedOrMovingStaysPut) {
  NodeRig rig({.host_pages = 16, .device_pages = {4}});
  const SessionId session = rig.Open();
  const ModelId model = rig.AddModel(session, "m", {1, 1, 1, 1, 2, 1});
  rig.StageNow(session, Key(model, 0));             // Leased.
  rig.Bring(Key(model, 1), kDevice, /*pin=*/true);  // Pinned.
  rig.FinishAll();
  Use(rig, session, Key(model, 2));                             // Idle.
  rig.Stage(session, Key(model, 3));                            // Moving.
  const RequestId request = rig.Stage(session, Key(model, 4));  // Needs two.
  EXPECT_TRUE(rig.waiting(request));
  EXPECT_TRUE(rig.Has(Key(model, 2), kDevice));  // Would not be enough alone.
  const RequestId small = rig.Stage(session, Key(model, 5));
  EXPECT_FALSE(rig.Has(Key(model, 2), kDevice));
  rig.FinishAll();
  rig.LeaseOf(small);
  rig.Advance(absl::Seconds(20));
  ASSERT_NE(rig.AnswerTo(request), nullptr);
  EXPECT_THAT(rig.AnswerTo(request)->status,
              StatusIs(kExhausted, HasSubstr("4.0 KiB is pinned")));
}

TEST(NodeSpace, WhatArrivedIsToldBeforeItMakesWay) {
  NodeRig rig({.host_pages = 16, .device_pages = {2}});
  const SessionId session = rig.Open();
  const ModelId model = rig.AddModel(session, "m", {1, 2});
  const RequestId load = rig.Bring(Key(model, 0), kDevice, /*pin=*/false);
  const RequestId stage = rig.Stage(session, Key(model, 1));
  rig.Finish<FilesToHost>();
  rig.Finish<HostToDevice>();
  ASSERT_NE(rig.AnswerTo(load), nullptr);
  EXPECT_OK(rig.AnswerTo(load)->status);
  rig.FinishAll();
  rig.LeaseOf(stage);
}

TEST(NodeSpace, AHostCopyThatIsBeingReadStaysPut) {
  NodeRig rig({.host_pages = 2, .device_pages = {4}});
  const SessionId session = rig.Open();
  const ModelId model = rig.AddModel(session, "m", {2, 2});
  rig.Stage(session, Key(model, 0));
  rig.Finish<FilesToHost>();
  ASSERT_THAT(rig.Moving<HostToDevice>(), SizeIs(1));
  const RequestId second = rig.Stage(session, Key(model, 1));
  EXPECT_TRUE(rig.Has(Key(model, 0), OnHost()));
  rig.FinishAll();
  rig.LeaseOf(second);
  EXPECT_FALSE(rig.Has(Key(model, 0), OnHost()));
  EXPECT_TRUE(rig.Has(Key(model, 0), kDevice));
}

TEST(NodeSpace, APrefetchBringsUpAndLeasesNothing) {
  NodeRig rig;
  const SessionId session = rig.Open();
  const ModelId model = rig.AddModel(session, "m", {1, 1, 1});
  ASSERT_OK(rig.Prefetch(session, model, {0, 2}));
  ASSERT_OK(rig.Prefetch(session, model, {1}, OnHost()));
  rig.FinishAll();
  EXPECT_TRUE(rig.Has(Key(model, 0), kDevice));
  EXPECT_TRUE(rig.Has(Key(model, 2), kDevice));
  EXPECT_FALSE(rig.Has(Key(model, 1), kDevice));
  EXPECT_TRUE(rig.Has(Key(model, 1), OnHost()));
  EXPECT_EQ(rig.TierOf(kDevice).leased_bytes, 0u);
}

TEST(NodeSpace, APrefetchNeverPushesOutAnother) {
  NodeRig rig({.device_pages = {2}});
  const SessionId session = rig.Open();
  const ModelId model = rig.AddModel(session, "m", {1, 1, 1});
  ASSERT_OK(rig.Prefetch(session, model, {0, 1, 2}));
  rig.FinishAll();
  EXPECT_TRUE(rig.Has(Key(model, 0), kDevice));
  EXPECT_TRUE(rig.Has(Key(model, 1), kDevice));
  EXPECT_FALSE(rig.Has(Key(model, 2), kDevice));
  Use(rig, session, Key(model, 0));  // Used: the third may have its place.
  rig.FinishAll();
  EXPECT_FALSE(rig.Has(Key(model, 0), kDevice));
  EXPECT_TRUE(rig.Has(Key(model, 1), kDevice));
  EXPECT_TRUE(rig.Has(Key(model, 2), kDevice));
}

TEST(NodeSpace, APrefetchNeverPushesOutWhatIsNeededSooner) {
  NodeRig rig({.device_pages = {2}});
  const SessionId session = rig.Open();
  const ModelId model = rig.AddModel(session, "m", {1, 1, 1, 1});
  ASSERT_OK(rig.SetOrder(session, model, {0, 1, 2, 3}));
  Use(rig, session, Key(model, 0));
  Use(rig, session, Key(model, 1));
  // Next come 2, 3, 0, 1.
  ASSERT_OK(rig.Prefetch(session, model, {2, 3}));
  rig.FinishAll();
  EXPECT_TRUE(rig.Has(Key(model, 2), kDevice));
  EXPECT_TRUE(rig.Has(Key(model, 3), kDevice));
  ASSERT_OK(rig.Prefetch(session, model, {0}));
  rig.FinishAll();
  EXPECT_FALSE(rig.Has(Key(model, 0), kDevice));
}

TEST(NodeSpace, AnUnusedPrefetchGivesWayToAStage) {
  NodeRig rig({.device_pages = {2}});
  const SessionId session = rig.Open();
  const ModelId model = rig.AddModel(session, "m", {1, 1, 1});
  ASSERT_OK(rig.Prefetch(session, model, {0, 1}));
  rig.FinishAll();
  rig.StageNow(session, Key(model, 2));
}

TEST(NodeSpace, APrefetchedHostCopyThatWasCopiedUpIsFreshNoMore) {
  NodeRig rig({.host_pages = 2, .device_pages = {8}});
  const SessionId session = rig.Open();
  const ModelId model = rig.AddModel(session, "m", {1, 1, 1});
  ASSERT_OK(rig.Prefetch(session, model, {0, 1}, OnHost()));
  rig.FinishAll();
  Use(rig, session, Key(model, 0));
  ASSERT_OK(rig.Prefetch(session, model, {2}, OnHost()));
  rig.FinishAll();
  EXPECT_TRUE(rig.Has(Key(model, 2), OnHost()));
  EXPECT_FALSE(rig.Has(Key(model, 0), OnHost()));
}

TEST(NodeSpace, APrefetchWithoutSpaceIsForgotten) {
  NodeRig rig({.device_pages = {2}});
  const SessionId session = rig.Open();
  const ModelId model = rig.AddModel(session, "m", {2, 1});
  const LeaseId lease = rig.StageNow(session, Key(model, 0));
  ASSERT_OK(rig.Prefetch(session, model, {1}));
  EXPECT_EQ(rig.node().NextDeadline(), rig.now + absl::Seconds(60));
  rig.Advance(absl::Seconds(60));
  EXPECT_EQ(rig.node().NextDeadline(), absl::InfiniteFuture());
  ASSERT_OK(rig.Release(session, lease));
  EXPECT_THAT(rig.Moving(), IsEmpty());
}

TEST(NodeSpace, APrefetchThatLostItsHostCopyGivesItsDeviceSpaceBack) {
  NodeRig rig({.host_pages = 2, .device_pages = {8}});
  const SessionId session = rig.Open();
  const ModelId model = rig.AddModel(session, "m", {2, 2});
  ASSERT_OK(rig.Prefetch(session, model, {0}));
  const RequestId pin =
      rig.Bring(Key(model, 1), OnHost(), /*pin=*/true, absl::Minutes(10));
  rig.Advance(absl::Minutes(1));  // The prefetch is late, but moves.
  rig.FinishAll();                // Its host copy makes way for the pin.
  EXPECT_OK(rig.AnswerTo(pin)->status);
  rig.Advance(absl::Minutes(2));
  EXPECT_EQ(rig.TierOf(kDevice).used_bytes, 0u);
  EXPECT_EQ(rig.node().NextDeadline(), absl::InfiniteFuture());
}

TEST(NodeSpace, ALoadEvictsOthersAndNoneOfItsOwn) {
  NodeRig rig({.host_pages = 4});
  const SessionId session = rig.Open();
  const ModelId old = rig.AddModel(session, "old", {2});
  const ModelId model = rig.AddModel(session, "new", {1, 1, 1, 1, 1});
  rig.Bring(Key(old, 0), OnHost(), /*pin=*/false);
  rig.FinishAll();
  std::vector<RequestId> requests;
  for (uint32_t g = 0; g < 5; ++g) {
    requests.push_back(rig.Bring(Key(model, g), OnHost(), /*pin=*/false,
                                 -absl::InfiniteDuration(), model));
  }
  rig.FinishAll();
  EXPECT_FALSE(rig.Has(Key(old, 0), OnHost()));
  for (uint32_t g = 0; g < 4; ++g) {
    EXPECT_OK(rig.AnswerTo(requests[g])->status);
    EXPECT_TRUE(rig.Has(Key(model, g), OnHost()));
  }
  ASSERT_NE(rig.AnswerTo(requests[4]), nullptr);
  EXPECT_THAT(rig.AnswerTo(requests[4])->status, StatusIs(kExhausted));
}

TEST(NodeSpace, ALoadToTheDevicePassesThroughASmallerHostPool) {
  NodeRig rig({.host_pages = 4, .device_pages = {16}});
  const SessionId session = rig.Open();
  const ModelId model = rig.AddModel(session, "m", {2, 2, 2, 2, 2, 2, 2, 2});
  std::vector<RequestId> requests;
  for (uint32_t g = 0; g < 8; ++g) {
    requests.push_back(rig.Bring(Key(model, g), kDevice, /*pin=*/false,
                                 absl::ZeroDuration(), model));
  }
  rig.FinishAll();
  for (const RequestId request : requests) {
    ASSERT_NE(rig.AnswerTo(request), nullptr);
    EXPECT_OK(rig.AnswerTo(request)->status);
  }
  for (uint32_t g = 0; g < 8; ++g) EXPECT_TRUE(rig.Has(Key(model, g), kDevice));
}

TEST(NodeSpace, PinnedCopiesStayUntilTheyAreUnpinned) {
  NodeRig rig({.host_pages = 16, .device_pages = {2}});
  const SessionId session = rig.Open();
  const ModelId model = rig.AddModel(session, "m", {2, 1});
  const RequestId pin = rig.Bring(Key(model, 0), kDevice, /*pin=*/true);
  rig.FinishAll();
  ASSERT_OK(rig.AnswerTo(pin)->status);
  EXPECT_EQ(rig.TierOf(kDevice).pinned_bytes, 2 * kPage);
  const CopyTotals kept = rig.Evict("m", kDevice);
  EXPECT_EQ(kept.kept, 1u);
  EXPECT_THAT(kept.kept_reason, HasSubstr("m/g0 is pinned on device 0"));
  const RequestId request = rig.Stage(session, Key(model, 1));
  EXPECT_TRUE(rig.waiting(request));
  EXPECT_EQ(rig.Unpin("m").groups, 1u);
  rig.FinishAll();
  rig.LeaseOf(request);
}

TEST(NodeSpace, EvictSaysWhatItKept) {
  NodeRig rig;
  const SessionId session = rig.Open();
  const ModelId model = rig.AddModel(session, "m", {1, 1, 1});
  rig.StageNow(session, Key(model, 0));
  Use(rig, session, Key(model, 1));
  rig.Stage(session, Key(model, 2));
  const CopyTotals totals = rig.Evict("m");
  // Device: g0 leased, g2 filling. Host: g2 filling.
  EXPECT_EQ(totals.kept, 3u);
  EXPECT_EQ(totals.groups, 3u);
  EXPECT_EQ(totals.bytes, 3 * kPage);
  EXPECT_TRUE(rig.Has(Key(model, 0), kDevice));
  EXPECT_FALSE(rig.Has(Key(model, 1), kDevice));
  EXPECT_FALSE(rig.Has(Key(model, 1), OnHost()));
}

TEST(NodeSpace, ForgetRefusesWhatIsInUse) {
  NodeRig rig;
  const SessionId session = rig.Open();
  const ModelId model = rig.AddModel(session, "m", {1, 1});
  const LeaseId lease = rig.StageNow(session, Key(model, 0));
  constexpr auto kPrecondition = absl::StatusCode::kFailedPrecondition;
  EXPECT_THAT(rig.Forget(model),
              StatusIs(kPrecondition, HasSubstr("m/g0 is leased on device 0")));
  ASSERT_OK(rig.Release(session, lease));
  rig.Stage(session, Key(model, 1));
  EXPECT_THAT(rig.Forget(model),
              StatusIs(kPrecondition, HasSubstr("being copied")));
  rig.Close(session);
  rig.FinishAll();
  ASSERT_OK(rig.Forget(model));
  EXPECT_THAT(rig.forgotten(), ::testing::ElementsAre(model));
  EXPECT_EQ(rig.TierOf(kDevice).used_bytes, 0u);
  EXPECT_EQ(rig.TierOf(OnHost()).used_bytes, 0u);
  EXPECT_THAT(rig.Forget(model), StatusIs(absl::StatusCode::kNotFound));
}

TEST(NodeSpace, ForgetAnswersThoseWhoWait) {
  NodeRig rig({.device_pages = {2}});
  const SessionId session = rig.Open();
  const ModelId held = rig.AddModel(session, "held", {2});
  const ModelId model = rig.AddModel(session, "m", {1});
  rig.StageNow(session, Key(held, 0));
  const RequestId request = rig.Stage(session, Key(model, 0));
  ASSERT_OK(rig.Forget(model));
  ASSERT_NE(rig.AnswerTo(request), nullptr);
  EXPECT_THAT(rig.AnswerTo(request)->status,
              StatusIs(absl::StatusCode::kNotFound, HasSubstr("forgotten")));
}

TEST(NodeSpace, MemoryMovesFromOneUsersZoneToAnothers) {
  NodeRig rig({.device_pages = {4},
               .slab_pages = 4,
               .closing = NodeRigOptions::Closing::kNever});
  const SessionId a = rig.Open(1), b = rig.Open(2);
  const ModelId mine = rig.AddModel(a, "m", {3});
  const ModelId other = rig.AddModel(b, "m", {3});
  Use(rig, a, Key(mine, 0));
  // The slab is mapped by session a: its memory would stay taken.
  const RequestId request = rig.Stage(b, Key(other, 0));
  EXPECT_TRUE(rig.waiting(request));
  EXPECT_TRUE(rig.Has(Key(mine, 0), kDevice));
  rig.Close(a);
  rig.FinishAll();
  rig.LeaseOf(request);
  EXPECT_FALSE(rig.Has(Key(mine, 0), kDevice));
}

TEST(NodeSpace, SelectNamesTheTierWhereItMust) {
  NodeRig rig;
  const SessionId session = rig.Open();
  rig.AddModel(session, "m", {1, 1});
  constexpr auto kInvalid = absl::StatusCode::kInvalidArgument;
  EXPECT_THAT(rig.node().picture().Select({"m", "", {}, rig.kAdmin}, false),
              StatusIs(kInvalid));
  EXPECT_THAT(
      rig.node().picture().Select({"m", "", OnDisk(), rig.kAdmin}, false),
      StatusIs(kInvalid));
  EXPECT_THAT(
      rig.node().picture().Select({"m", "nope", OnHost(), rig.kAdmin}, false),
      StatusIs(absl::StatusCode::kNotFound, HasSubstr("no group")));
  EXPECT_THAT(
      *rig.node().picture().Select({"m", "", OnHost(), rig.kAdmin}, false),
      SizeIs(2));
  EXPECT_THAT(
      *rig.node().picture().Select({"m", "g1", OnHost(), rig.kAdmin}, false),
      SizeIs(1));
  EXPECT_THAT(*rig.node().picture().Select({"m", "", {}, rig.kAdmin}, true),
              IsEmpty());
}

}  // namespace hoistd::node_space_test
