// Published groups: the only copy of their bytes until they are spilled.
#include "daemon/core/node_restore.h"
#include "daemon/model/published_group.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "tests/support/node_rig.h"
#include "tests/support/status_matchers.h"

namespace hoistd::node_published_test {

using ::testing::AllOf;
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

TEST(NodePublished, IsStagedFromTheHostItWasReceivedIn) {
  NodeRig rig;
  const SessionId session = rig.Open();
  const GroupKey key = rig.Published(session, "p", "a", 2);
  EXPECT_TRUE(rig.Has(key, OnHost()));
  rig.StageNow(session, key);
  EXPECT_EQ(rig.counters().spill_read_bytes, 0u);
}

TEST(NodePublished, GroupsOfOneNameAreOneModel) {
  NodeRig rig;
  const SessionId session = rig.Open();
  const GroupKey a = rig.Published(session, "p", "a", 1);
  const GroupKey b = rig.Published(session, "p", "b", 1);
  EXPECT_EQ(a.model, b.model);
  EXPECT_NE(a.group, b.group);
  EXPECT_THAT(rig.node().copies().models().begin()->second->groups, SizeIs(2));
}

TEST(NodePublished, TheSameBytesAttachAndTakeNoSpace) {
  NodeRig rig({.host_pages = 2});
  const SessionId session = rig.Open();
  const GroupKey key = rig.Published(session, "p", "a", 2);
  const RequestId again = rig.Publish(session, "p", "a", 2);
  EXPECT_FALSE(rig.TheWay<ClientToHost>().host_offset.has_value());
  rig.Finish<ClientToHost>();
  ASSERT_OK(rig.AnswerTo(again)->status);
  EXPECT_EQ(rig.AnswerTo(again)->model->id, key.model);
  EXPECT_EQ(rig.TierOf(OnHost()).used_bytes, 2 * kPage);
}

TEST(NodePublished, OtherBytesAreRefused) {
  NodeRig rig;
  const SessionId session = rig.Open();
  rig.Published(session, "p", "a", 2);
  const RequestId other = rig.Publish(session, "p", "a", 2, /*content=*/7);
  rig.Finish<ClientToHost>();
  EXPECT_THAT(
      rig.AnswerTo(other)->status,
      StatusIs(absl::StatusCode::kAlreadyExists, HasSubstr("other weights")));
  EXPECT_EQ(rig.TierOf(OnHost()).used_bytes, 2 * kPage);
}

TEST(NodePublished, OfTwoAtOnceOneKeepsItsSpace) {
  NodeRig rig;
  const SessionId session = rig.Open();
  const RequestId first = rig.Publish(session, "p", "a", 2);
  const RequestId second = rig.Publish(session, "p", "a", 2);
  const RequestId third = rig.Publish(session, "p", "a", 2, /*content=*/1);
  EXPECT_EQ(rig.TierOf(OnHost()).used_bytes, 6 * kPage);
  rig.FinishAll();
  ASSERT_OK(rig.AnswerTo(first)->status);
  ASSERT_OK(rig.AnswerTo(second)->status);
  EXPECT_THAT(rig.AnswerTo(third)->status,
              StatusIs(absl::StatusCode::kAlreadyExists));
  EXPECT_EQ(rig.TierOf(OnHost()).used_bytes, 2 * kPage);
}

TEST(NodePublished, AModelFromFilesTakesNoGroups) {
  NodeRig rig;
  const SessionId session = rig.Open();
  rig.AddModel(session, "m", {1});
  const RequestId request = rig.Publish(session, "m", "a", 1);
  rig.FinishAll();
  EXPECT_THAT(rig.AnswerTo(request)->status,
              StatusIs(absl::StatusCode::kAlreadyExists,
                       HasSubstr("under another name")));
  EXPECT_EQ(rig.TierOf(OnHost()).used_bytes, 0u);
}

TEST(NodePublished, WhatIsNotWhatWasExpectedLeavesNothing) {
  NodeRig rig;
  const SessionId session = rig.Open();
  Content right = {};  // As the rig says of bytes of `content` 1.
  right[0] = 1;
  const RequestId wrong = rig.Publish(session, "p", "a", 2, /*content=*/7,
                                      absl::Seconds(60), right);
  rig.Finish<ClientToHost>();
  EXPECT_THAT(rig.AnswerTo(wrong)->status,
              StatusIs(absl::StatusCode::kDataLoss,
                       HasSubstr("p/a are others than expected")));
  EXPECT_EQ(rig.TierOf(OnHost()).used_bytes, 0u);
  EXPECT_THAT(rig.node().copies().models(), IsEmpty());

  const RequestId again = rig.Publish(session, "p", "a", 2, /*content=*/1,
                                      absl::Seconds(60), right);
  rig.Finish<ClientToHost>();
  ASSERT_OK(rig.AnswerTo(again)->status);
  // Where the group is there already, the bytes are as much looked at.
  const RequestId other = rig.Publish(session, "p", "a", 2, /*content=*/7,
                                      absl::Seconds(60), right);
  rig.Finish<ClientToHost>();
  EXPECT_THAT(rig.AnswerTo(other)->status,
              StatusIs(absl::StatusCode::kDataLoss));
  EXPECT_EQ(rig.TierOf(OnHost()).used_bytes, 2 * kPage);
}

TEST(NodePublished, AFailedReceiveLeavesNothing) {
  NodeRig rig;
  const SessionId session = rig.Open();
  const RequestId request = rig.Publish(session, "p", "a", 2);
  rig.Finish<ClientToHost>(absl::InvalidArgumentError("not sealed"));
  EXPECT_THAT(rig.AnswerTo(request)->status,
              StatusIs(absl::StatusCode::kInvalidArgument));
  EXPECT_EQ(rig.TierOf(OnHost()).used_bytes, 0u);
  EXPECT_THAT(rig.node().copies().models(), IsEmpty());
}

TEST(NodePublished, ASessionThatClosesMeanwhileLeavesNothing) {
  NodeRig rig({.host_pages = 2});
  const SessionId session = rig.Open();
  rig.Publish(session, "p", "a", 2);
  rig.Publish(session, "p", "b", 2);  // Waits for space.
  rig.Close(session);
  rig.FinishAll();
  EXPECT_EQ(rig.TierOf(OnHost()).used_bytes, 0u);
  EXPECT_THAT(rig.node().copies().models(), IsEmpty());
}

TEST(NodePublished, IsRefusedInTimeWhereThereIsNoSpace) {
  NodeRig rig({.host_pages = 2});
  const SessionId session = rig.Open();
  const RequestId never = rig.Publish(session, "p", "x", 3);
  EXPECT_THAT(rig.AnswerTo(never)->status,
              StatusIs(kExhausted, HasSubstr("host.pool")));
  rig.Published(session, "p", "a", 2);
  const RequestId late = rig.Publish(session, "p", "b", 1, 0, absl::Seconds(5));
  rig.Advance(absl::Seconds(5));
  ASSERT_NE(rig.AnswerTo(late), nullptr);
  EXPECT_THAT(rig.AnswerTo(late)->status,
              StatusIs(kExhausted, AllOf(HasSubstr("published and nowhere"),
                                         HasSubstr("set disk.spill_dir"))));
}

TEST(NodePublished, TheOnlyCopyIsNeverDroppedWithoutASpillStore) {
  NodeRig rig({.host_pages = 2});
  const SessionId session = rig.Open();
  const GroupKey key = rig.Published(session, "p", "a", 2);
  const ModelId model = rig.AddModel(session, "m", {1});
  const RequestId request = rig.Stage(session, Key(model, 0));
  rig.Advance(absl::Seconds(10));
  EXPECT_THAT(rig.AnswerTo(request)->status, StatusIs(kExhausted));
  const CopyTotals totals = rig.Evict("p");
  EXPECT_EQ(totals.kept, 1u);
  EXPECT_THAT(totals.kept_reason, HasSubstr("no disk.spill_dir"));
  EXPECT_TRUE(rig.Has(key, OnHost()));
}

TEST(NodePublished, IsSpilledBeforeItGoes) {
  NodeRig rig({.host_pages = 2, .can_spill = true});
  const SessionId session = rig.Open();
  const GroupKey key = rig.Published(session, "p", "a", 2);
  const ModelId model = rig.AddModel(session, "m", {1});
  const RequestId request =
      rig.Stage(session, Key(model, 0), absl::ZeroDuration());
  ASSERT_THAT(rig.Moving<HostToSpill>(), SizeIs(1));
  EXPECT_EQ(rig.TheWay<HostToSpill>().owner, User(1));
  EXPECT_TRUE(rig.Has(key, OnHost()));
  EXPECT_TRUE(rig.waiting(request));  // A spill is waited for.
  rig.FinishAll();
  rig.LeaseOf(request);
  EXPECT_FALSE(rig.Has(key, OnHost()));
  EXPECT_EQ(rig.TierOf(OnDisk()).used_bytes, 2 * kPage);
  // And comes back from there.
  rig.StageNow(session, key);
  EXPECT_EQ(rig.counters().spill_read_bytes, 2 * kPage);
  EXPECT_EQ(rig.counters().spill_written_bytes, 2 * kPage);
}

TEST(NodePublished, TheDiskShowsWhatItCouldHold) {
  for (const bool can_spill : {false, true}) {
    NodeRig rig({.can_spill = can_spill});
    rig.Published(rig.Open(), "p", "a", 2);
    rig.Evict("p");
    rig.FinishAll();
    const TierUse disk = rig.TierOf(OnDisk());
    EXPECT_EQ(disk.capacity_bytes,
              can_spill ? testing::kSpillPages * kPage : 0);
    EXPECT_EQ(disk.used_bytes, can_spill ? 2 * kPage : 0);
  }
}

TEST(NodePublished, EvictSpillsAndThenDrops) {
  NodeRig rig({.can_spill = true});
  const SessionId session = rig.Open();
  const GroupKey key = rig.Published(session, "p", "a", 2);
  EXPECT_EQ(rig.Evict("p").groups, 1u);
  EXPECT_EQ(rig.StateOf(key, OnHost()), Residency::kLeaving);
  EXPECT_EQ(rig.Evict("p").groups, 1u);  // It is going.
  EXPECT_THAT(rig.Moving<HostToSpill>(), SizeIs(1));
  rig.Finish<HostToSpill>();
  EXPECT_EQ(rig.TierOf(OnHost()).used_bytes, 0u);
  ASSERT_OK(rig.Forget(key.model));
  EXPECT_THAT(rig.spills(), IsEmpty());
}

TEST(NodePublished, ASpilledCopyThatIsWantedAgainStays) {
  NodeRig rig({.can_spill = true});
  const SessionId session = rig.Open();
  const GroupKey key = rig.Published(session, "p", "a", 2);
  rig.Evict("p");
  const RequestId request = rig.Stage(session, key);
  rig.Finish<HostToSpill>();
  EXPECT_TRUE(rig.Has(key, OnHost()));  // A copy reads it.
  rig.FinishAll();
  rig.LeaseOf(request);
}

TEST(NodePublished, AFailedSpillKeepsTheCopyAndIsTriedAgainLater) {
  NodeRig rig({.host_pages = 2, .can_spill = true});
  const SessionId session = rig.Open();
  const GroupKey key = rig.Published(session, "p", "a", 2);
  const ModelId model = rig.AddModel(session, "m", {1});
  const RequestId now = rig.Stage(session, Key(model, 0), absl::ZeroDuration());
  const RequestId later = rig.Stage(session, Key(model, 0), absl::Minutes(1));
  rig.Finish<HostToSpill>(absl::ResourceExhaustedError("the disk is full"));
  EXPECT_TRUE(rig.Has(key, OnHost()));
  ASSERT_NE(rig.AnswerTo(now), nullptr);
  EXPECT_THAT(
      rig.AnswerTo(now)->status,
      StatusIs(kExhausted, HasSubstr("spilling failed; an admin is told")));
  EXPECT_TRUE(rig.waiting(later));
  EXPECT_THAT(rig.Moving(), IsEmpty());
  EXPECT_EQ(rig.node().NextDeadline(), rig.now + absl::Seconds(10));
  rig.Advance(absl::Seconds(9));
  EXPECT_THAT(rig.Moving(), IsEmpty());
  rig.Advance(absl::Seconds(1));
  ASSERT_THAT(rig.Moving<HostToSpill>(), SizeIs(1));
  rig.FinishAll();
  rig.LeaseOf(later);
}

TEST(NodePublished, ForgettingASpilledModelMakesSpillsWorkAgain) {
  NodeRig rig({.host_pages = 2, .can_spill = true});
  const SessionId session = rig.Open();
  const GroupKey spilled = rig.Published(session, "s", "a", 2);
  rig.Evict("s");
  rig.Finish<HostToSpill>();
  rig.Published(session, "p", "a", 2);
  const ModelId model = rig.AddModel(session, "m", {1});
  const RequestId request = rig.Stage(session, Key(model, 0), absl::Minutes(1));
  rig.Finish<HostToSpill>(absl::ResourceExhaustedError("the disk is full"));
  ASSERT_OK(rig.Forget(spilled.model));
  EXPECT_THAT(rig.Moving<HostToSpill>(), SizeIs(1));
  rig.FinishAll();
  rig.LeaseOf(request);
}

TEST(NodePublished, DamagedBytesAreLostAndSaidSo) {
  NodeRig rig({.can_spill = true});
  const SessionId session = rig.Open();
  const GroupKey key = rig.Published(session, "p", "a", 2);
  rig.Evict("p");
  rig.Finish<HostToSpill>();
  const RequestId request = rig.Stage(session, key);
  rig.Finish<SpillToHost>(absl::DataLossError("block 3 is damaged"));
  constexpr auto kDataLoss = absl::StatusCode::kDataLoss;
  EXPECT_THAT(rig.AnswerTo(request)->status, StatusIs(kDataLoss));
  EXPECT_EQ(rig.StateOf(key, OnDisk()), Residency::kLost);
  const RequestId again = rig.Stage(session, key);
  EXPECT_THAT(rig.AnswerTo(again)->status,
              StatusIs(kDataLoss, AllOf(HasSubstr("p/a is lost"),
                                        HasSubstr("publish it again"))));
  EXPECT_THAT(rig.Moving(), IsEmpty());
  EXPECT_EQ(rig.TierOf(kDevice).used_bytes, 0u);
  ASSERT_OK(rig.Forget(key.model));
  EXPECT_THAT(rig.spills(), IsEmpty());  // What was put aside takes no room.
  rig.StageNow(session, rig.Published(session, "p", "a", 2));
}

TEST(NodePublished, AnUnreadableSpillIsTriedAgain) {
  NodeRig rig({.can_spill = true});
  const SessionId session = rig.Open();
  const GroupKey key = rig.Published(session, "p", "a", 2);
  rig.Evict("p");
  rig.Finish<HostToSpill>();
  rig.Stage(session, key);
  rig.Finish<SpillToHost>(absl::UnavailableError("try again"));
  rig.StageNow(session, key);
}

TEST(NodePublished, TheLastGoodCopyOnADeviceIsKept) {
  NodeRig rig({.host_pages = 2, .device_pages = {2, 2}, .can_spill = true});
  const SessionId session = rig.Open();
  const GroupKey key = rig.Published(session, "p", "a", 2);
  const LeaseId lease = rig.StageNow(session, key);
  rig.Evict("p", OnHost());
  rig.Finish<HostToSpill>();
  rig.Stage(session, key, absl::Seconds(10), /*device=*/1);
  rig.Finish<SpillToHost>(absl::DataLossError("damaged"));
  ASSERT_OK(rig.Release(session, lease));
  // Device 0 has the only copy that is left.
  EXPECT_EQ(rig.Evict("p").kept, 1u);
  const ModelId model = rig.AddModel(session, "m", {2});
  const RequestId request = rig.Stage(session, Key(model, 0));
  rig.Advance(absl::Seconds(10));
  EXPECT_THAT(rig.AnswerTo(request)->status, StatusIs(kExhausted));
  rig.StageNow(session, key);
}

TEST(NodePublished, WhatTheStoreHasIsServedAfterARestart) {
  NodeRig rig({.can_spill = true});
  auto group = std::make_shared<Group>();
  group->name = "a";
  group->image_bytes = 2 * kPage;
  const Content content = {7};
  RestoredGroup restored;
  restored.model = "p";
  restored.owner = User(1);
  restored.group = group;
  restored.content = content;
  EXPECT_THAT(rig.node().registry().Restore(restored),
              StatusIs(absl::StatusCode::kInvalidArgument));
  restored.spill = SpillId(5);
  ASSERT_OK(rig.node().registry().Restore(restored));
  restored.spill = SpillId(6);
  EXPECT_THAT(rig.node().registry().Restore(restored),
              StatusIs(absl::StatusCode::kAlreadyExists));
  const SessionId owner = rig.Open(1), other = rig.Open(2);
  EXPECT_FALSE(rig.node().tenure().Find(other, "p").ok());
  const auto model = rig.node().tenure().Find(owner, "p");
  ASSERT_OK(model);
  // It is still known what its bytes are.
  EXPECT_OK(rig.node().tenure().FindByContent(owner, ModelContent({content})));
  EXPECT_EQ(rig.TierOf(OnDisk()).used_bytes, 2 * kPage);
  rig.Store(SpillId(5), group);
  rig.StageNow(owner, Key((*model)->id, 0));
  EXPECT_EQ(rig.counters().spill_read_bytes, 2 * kPage);
}

TEST(NodePublished, WhoOpensAModelThatLacksGroupsIsToldHowMany) {
  NodeRig rig({.can_spill = true});
  auto group = std::make_shared<Group>();
  group->name = "a";
  group->image_bytes = 2 * kPage;
  RestoredGroup restored;
  restored.model = "p";
  restored.owner = User(1);
  restored.group = group;
  restored.content = {7};
  restored.spill = SpillId(5);
  ASSERT_OK(rig.node().registry().Restore(restored));
  rig.Store(SpillId(5), group);
  NodeRestore(rig.node()).HadGroups(User(1), "p", 3);
  const SessionId session = rig.Open(1);
  const auto lacks = [&](absl::string_view what) {
    EXPECT_THAT(rig.node().tenure().Find(session, "p"),
                StatusIs(absl::StatusCode::kDataLoss,
                         AllOf(HasSubstr(what), HasSubstr("publish it again"),
                               HasSubstr("evict --forget"))));
  };
  lacks("2 of its 3 groups are gone");
  EXPECT_EQ(rig.node().copies().models().begin()->second->missing(), 2u);
  // An admin still sees what there is.
  EXPECT_OK(rig.node().tenure().Find(NodeRig::kAdmin, "p"));
  rig.Published(session, "p", "b", 1);
  lacks("1 of its 3 groups are gone");
  rig.Published(session, "p", "c", 1);
  EXPECT_OK(rig.node().tenure().Find(session, "p"));
  EXPECT_EQ(rig.node().copies().models().begin()->second->missing(), 0u);
}

TEST(NodePublished, AForgottenGroupIsNotComparedWith) {
  NodeRig rig;
  const SessionId session = rig.Open();
  const GroupKey key = rig.Published(session, "p", "a", 1);
  const RequestId again = rig.Publish(session, "p", "a", 1);
  ASSERT_OK(rig.Forget(key.model));
  rig.Finish<ClientToHost>();
  EXPECT_THAT(rig.AnswerTo(again)->status,
              StatusIs(absl::StatusCode::kAborted, HasSubstr("publish again")));
}

}  // namespace hoistd::node_published_test
