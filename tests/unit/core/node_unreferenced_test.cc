// Published models that no session uses: the first to go.
#include <string>
#include <vector>

#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "tests/support/node_rig.h"
#include "tests/support/status_matchers.h"

namespace hoistd::node_unreferenced_test {

using ::testing::ElementsAre;
using ::testing::IsEmpty;
using testing::IsOk;
using testing::kPage;
using testing::NodeRig;
using testing::NodeRigOptions;
using ::testing::SizeIs;
using testing::StatusIs;

constexpr auto kExhausted = absl::StatusCode::kResourceExhausted;
constexpr uint32_t kAda = 1000, kBob = 1001;

GroupKey Key(ModelId model, uint32_t group) {
  return {model, GroupIndex(group)};
}

class NodeUnreferenced : public ::testing::Test {
 protected:
  // What Ada published and left.
  GroupKey Left(const std::string& model, uint64_t pages) {
    const SessionId ada = rig_.Open(kAda);
    const GroupKey key = rig_.Published(ada, model, "a", pages);
    rig_.now += absl::Seconds(1);
    rig_.Close(ada);
    return key;
  }
  absl::Status PublishedByBob(uint64_t pages) {
    const RequestId request = rig_.Publish(bob_, "bobs", "a", pages);
    rig_.FinishAll();
    rig_.Advance(absl::Minutes(2));
    return rig_.AnswerTo(request)->status;
  }

  NodeRig rig_{{.host_pages = 4, .readers = Readers::kEveryone}};
  SessionId bob_ = rig_.Open(kBob);
};

TEST_F(NodeUnreferenced, AModelMakesWayForAnotherUsersPublication) {
  const GroupKey key = Left("p", 3);
  EXPECT_TRUE(rig_.Has(key, OnHost()));
  EXPECT_OK(PublishedByBob(4));
  EXPECT_THAT(rig_.forgotten(), ElementsAre(key.model));
  EXPECT_EQ(rig_.node().quota().Of(User(kAda)), Holdings());
  int told = 0;
  for (const NodeEvent& event : rig_.events()) {
    told += event.kind == EventKind::kModelForgotten && event.model == "p";
  }
  EXPECT_EQ(told, 1);
}

TEST_F(NodeUnreferenced, AModelMakesWayForAStage) {
  const GroupKey key = Left("p", 3);
  const ModelId model = rig_.AddModel(bob_, "m", {2});
  rig_.StageNow(bob_, Key(model, 0));
  EXPECT_THAT(rig_.forgotten(), ElementsAre(key.model));
}

TEST_F(NodeUnreferenced, TheOldestGoesAndNoMoreThanMust) {
  const GroupKey old = Left("old", 2);
  const GroupKey recent = Left("recent", 2);
  EXPECT_OK(PublishedByBob(2));
  EXPECT_THAT(rig_.forgotten(), ElementsAre(old.model));
  EXPECT_TRUE(rig_.Has(recent, OnHost()));
}

TEST_F(NodeUnreferenced, WhatCanBeHadAgainGoesBeforeItIfItIsNotUsedEither) {
  const GroupKey key = Left("p", 2);
  const SessionId carl = rig_.Open(kBob + 1);
  const ModelId files = rig_.AddModel(carl, "m", {2});
  ASSERT_OK(rig_.Release(carl, rig_.StageNow(carl, Key(files, 0))));
  rig_.Close(carl);
  EXPECT_OK(PublishedByBob(2));
  EXPECT_FALSE(rig_.Has(Key(files, 0), OnHost()));
  EXPECT_TRUE(rig_.Has(key, OnHost()));
  EXPECT_THAT(rig_.forgotten(), IsEmpty());
}

TEST_F(NodeUnreferenced, ItGoesBeforeWhatASessionUsesAndCanBeHadAgain) {
  const GroupKey key = Left("p", 2);
  const ModelId files = rig_.AddModel(bob_, "m", {2});
  ASSERT_OK(rig_.Release(bob_, rig_.StageNow(bob_, Key(files, 0))));
  EXPECT_OK(PublishedByBob(2));
  EXPECT_TRUE(rig_.Has(Key(files, 0), OnHost()));
  EXPECT_THAT(rig_.forgotten(), ElementsAre(key.model));
}

// It has neither lease nor plan there, and may be about to use it.
TEST_F(NodeUnreferenced, AModelThatASessionUsesStays) {
  const SessionId ada = rig_.Open(kAda);
  const GroupKey key = rig_.Published(ada, "p", "a", 3);
  const std::string name = ToString(OwnedName{User(kAda), "p"});
  const SessionId carl = rig_.Open(kBob + 1);
  ASSERT_OK(rig_.node().tenure().Find(carl, name));
  EXPECT_THAT(PublishedByBob(4), StatusIs(kExhausted));
  rig_.Close(ada);
  EXPECT_THAT(PublishedByBob(4), StatusIs(kExhausted));
  EXPECT_TRUE(rig_.Has(key, OnHost()));
  rig_.Close(carl);
  EXPECT_OK(PublishedByBob(4));
  EXPECT_THAT(rig_.forgotten(), ElementsAre(key.model));
}

TEST_F(NodeUnreferenced, ASessionThatIsDoneWithAModelKeepsItNoMore) {
  const GroupKey key = rig_.Published(bob_, "old", "a", 3);
  EXPECT_THAT(PublishedByBob(4), StatusIs(kExhausted));
  ASSERT_OK(rig_.SetOrder(bob_, key.model, {}));
  // It asks once more.
  ASSERT_OK(rig_.Release(bob_, rig_.StageNow(bob_, key)));
  EXPECT_THAT(PublishedByBob(4), StatusIs(kExhausted));
  const RequestId request = rig_.Publish(bob_, "bobs", "a", 4);
  ASSERT_OK(rig_.SetOrder(bob_, key.model, {}));
  rig_.FinishAll();
  EXPECT_OK(rig_.AnswerTo(request)->status);
  EXPECT_THAT(rig_.forgotten(), ElementsAre(key.model));
  EXPECT_EQ(rig_.counters().models_forgotten, 1u);
}

// Of what a failed call has made.
TEST_F(NodeUnreferenced, AModelThatIsToBeForgottenGoesWithItsLastUse) {
  const GroupKey key = rig_.Published(bob_, "p", "a", 2);
  const ModelId files = rig_.AddModel(bob_, "m", {2});
  ASSERT_OK(rig_.Release(bob_, rig_.StageNow(bob_, Key(files, 0))));
  const LeaseId lease = rig_.StageNow(bob_, key);
  ASSERT_OK(rig_.SetOrder(bob_, key.model, {}, /*forget=*/true));
  EXPECT_TRUE(rig_.Has(key, OnHost()));  // It is leased.
  ASSERT_OK(rig_.SetOrder(bob_, files, {}, /*forget=*/true));
  EXPECT_THAT(rig_.forgotten(), ElementsAre(files));
  ASSERT_OK(rig_.Release(bob_, lease));
  EXPECT_THAT(rig_.forgotten(), ElementsAre(files, key.model));
}

TEST_F(NodeUnreferenced, AModelThatIsToBeForgottenStaysIfItIsWanted) {
  const SessionId other = rig_.Open(kBob);
  const GroupKey used = rig_.Published(bob_, "used", "a", 1);
  ASSERT_OK(rig_.node().tenure().Find(other, "used"));
  ASSERT_OK(rig_.SetOrder(bob_, used.model, {}, /*forget=*/true));
  ASSERT_OK(rig_.SetOrder(other, used.model, {}));  // As any other user.
  const GroupKey pinned = rig_.Published(bob_, "pinned", "a", 1);
  rig_.Bring(pinned, OnHost(), /*pin=*/true);
  ASSERT_OK(rig_.SetOrder(bob_, pinned.model, {}, /*forget=*/true));
  const GroupKey asked = rig_.Published(bob_, "asked", "a", 1);
  const LeaseId lease = rig_.StageNow(bob_, asked);
  ASSERT_OK(rig_.SetOrder(bob_, asked.model, {}, /*forget=*/true));
  ASSERT_OK(rig_.node().tenure().Find(bob_, "asked"));  // Before its end.
  ASSERT_OK(rig_.Release(bob_, lease));
  EXPECT_THAT(rig_.forgotten(), IsEmpty());
}

TEST_F(NodeUnreferenced, OnlyItsUserHasAModelForgotten) {
  const SessionId ada = rig_.Open(kAda);
  const GroupKey key = rig_.Published(ada, "p", "a", 3);
  ASSERT_OK(
      rig_.node().tenure().Find(bob_, ToString(OwnedName{User(kAda), "p"})));
  ASSERT_OK(rig_.SetOrder(ada, key.model, {}));
  ASSERT_OK(rig_.SetOrder(bob_, key.model, {}, /*forget=*/true));
  EXPECT_THAT(rig_.forgotten(), IsEmpty());
}

TEST_F(NodeUnreferenced, AnOwnersOtherSessionKeepsNone) {
  const GroupKey key = Left("p", 3);
  rig_.Open(kAda);
  EXPECT_OK(PublishedByBob(4));
  EXPECT_THAT(rig_.forgotten(), ElementsAre(key.model));
}

TEST_F(NodeUnreferenced, TheLeastRecentlyUsedGoesThoughAnotherIsSmaller) {
  const GroupKey first = Left("first", 2);
  const GroupKey small = Left("small", 1);
  const SessionId ada = rig_.Open(kAda);
  ASSERT_OK(rig_.Release(ada, rig_.StageNow(ada, first)));
  rig_.now += absl::Seconds(1);
  rig_.Close(ada);
  EXPECT_OK(PublishedByBob(2));
  EXPECT_THAT(rig_.forgotten(), ElementsAre(small.model));
  EXPECT_TRUE(rig_.Has(first, OnHost()));
}

TEST_F(NodeUnreferenced, AnOwnersQuotaIsRoomForTheNextOfTheirModels) {
  NodeRigOptions options = {.host_pages = 8};
  options.quota.each.published_bytes = 4 * kPage;
  NodeRig rig(options);
  const SessionId bob = rig.Open(kBob);
  std::vector<ModelId> left;
  for (const char* name : {"a", "b"}) {
    const SessionId ada = rig.Open(kAda);
    left.push_back(rig.Published(ada, name, "g", 2).model);
    rig.now += absl::Seconds(1);
    rig.Close(ada);
  }
  const GroupKey bobs = rig.Published(bob, "c", "g", 2);
  const SessionId ada = rig.Open(kAda);
  const GroupKey next = rig.Published(ada, "d", "g", 1);
  EXPECT_THAT(rig.forgotten(), ElementsAre(left[0]));
  const RequestId request = rig.Publish(ada, "e", "g", 4);
  rig.FinishAll();
  rig.Advance(absl::Minutes(2));
  EXPECT_THAT(rig.AnswerTo(request)->status, StatusIs(kExhausted));
  EXPECT_THAT(rig.forgotten(), ElementsAre(left[0]))
      << "it would not have been enough";
  EXPECT_TRUE(rig.Has(bobs, OnHost()) && rig.Has(next, OnHost()));
}

TEST_F(NodeUnreferenced, AfterADeathWhoGoesOnUsesWhatItMayRead) {
  const SessionId ada = rig_.Open(kAda);
  const GroupKey key = rig_.Published(ada, "p", "a", 3);
  ASSERT_TRUE(rig_.Die());
  rig_.FinishAll();
  EXPECT_THAT(PublishedByBob(4), StatusIs(kExhausted));
  rig_.Close(ada);
  EXPECT_THAT(PublishedByBob(4), StatusIs(kExhausted)) << "Bob may read it";
  ASSERT_OK(rig_.SetOrder(bob_, key.model, {}));
  EXPECT_OK(PublishedByBob(4));
}

TEST_F(NodeUnreferenced, WhatIsLeasedPinnedOrHeldStays) {
  const GroupKey leased = Left("leased", 3);
  const auto done = [&] { return rig_.SetOrder(bob_, leased.model, {}); };
  const LeaseId lease = rig_.StageNow(bob_, leased);
  ASSERT_OK(done());
  EXPECT_THAT(PublishedByBob(4), StatusIs(kExhausted));
  ASSERT_OK(rig_.Release(bob_, lease));
  rig_.Bring(leased, OnHost(), /*pin=*/true);
  EXPECT_THAT(PublishedByBob(4), StatusIs(kExhausted));
  EXPECT_EQ(rig_.Unpin(ToString(OwnedName{User(kAda), "leased"})).groups, 1u);
  const PlanGrant plan = rig_.PlanOf(rig_.SetPlan(bob_, leased.model, {0}, 3));
  ASSERT_OK(done());
  EXPECT_THAT(PublishedByBob(4), StatusIs(kExhausted));
  EXPECT_THAT(rig_.forgotten(), IsEmpty());
  ASSERT_OK(rig_.EndPlan(bob_, plan.id));
  rig_.FreePlan(plan.id);
  EXPECT_OK(PublishedByBob(4));
  EXPECT_THAT(rig_.forgotten(), ElementsAre(leased.model));
  EXPECT_EQ(rig_.TierOf(NodeRig::FirstDevice()).used_bytes, 0u);
}

// A worker keeps its handle of the model, and plans with it again.
TEST_F(NodeUnreferenced, ARequestForAPlanIsAUse) {
  const GroupKey key = rig_.Published(bob_, "p", "a", 3);
  ASSERT_OK(rig_.SetOrder(bob_, key.model, {}));
  const PlanGrant plan = rig_.PlanOf(rig_.SetPlan(bob_, key.model, {0}, 3));
  ASSERT_OK(rig_.EndPlan(bob_, plan.id));
  rig_.FreePlan(plan.id);
  EXPECT_THAT(PublishedByBob(4), StatusIs(kExhausted));
  EXPECT_THAT(rig_.forgotten(), IsEmpty());
}

TEST_F(NodeUnreferenced, APrefetchPushesNoneOut) {
  const GroupKey key = Left("p", 3);
  const ModelId model = rig_.AddModel(bob_, "m", {2});
  ASSERT_OK(rig_.Prefetch(bob_, model, {0}, OnHost()));
  rig_.Advance(absl::Minutes(2));
  EXPECT_TRUE(rig_.Has(key, OnHost()));
}

TEST_F(NodeUnreferenced, WithASpillStoreItIsSpilledBeforeAnythingElseLeaves) {
  NodeRig rig({.host_pages = 4, .can_spill = true});
  const SessionId ada = rig.Open(kAda), bob = rig.Open(kBob);
  const GroupKey bobs = rig.Published(bob, "old", "a", 2);
  rig.now += absl::Seconds(9);
  const GroupKey left = rig.Published(ada, "new", "a", 2);
  rig.Close(ada);
  const ModelId model = rig.AddModel(bob, "m", {2});
  const RequestId request = rig.Stage(bob, Key(model, 0));
  ASSERT_THAT(rig.Moving<HostToSpill>(), SizeIs(1));
  EXPECT_EQ(rig.TransferOf(rig.Moving<HostToSpill>()[0]).key, left);
  rig.FinishAll();
  rig.LeaseOf(request);
  EXPECT_TRUE(rig.Has(bobs, OnHost()));
  EXPECT_THAT(rig.forgotten(), IsEmpty());
  const SessionId again = rig.Open(kAda);
  rig.StageNow(again, left);
}

TEST_F(NodeUnreferenced, AFullDiskIsNoReasonToKeepItAndAFailingOneIs) {
  for (const bool full : {false, true}) {
    SCOPED_TRACE(full);
    NodeRig rig({.host_pages = 4, .can_spill = true});
    const SessionId ada = rig.Open(kAda), bob = rig.Open(kBob);
    const GroupKey left = rig.Published(ada, "p", "a", 3);
    rig.Close(ada);
    const RequestId request =
        rig.Publish(bob, "q", "a", 4, 0, absl::Seconds(5));
    rig.Finish<HostToSpill>(full ? absl::ResourceExhaustedError("full")
                                 : absl::InternalError("I/O error"));
    EXPECT_EQ(rig.forgotten().size(), full ? 1u : 0u);
    EXPECT_EQ(rig.Has(left, OnHost()), !full);
    rig.FinishAll();
    rig.Advance(absl::Seconds(5));
    EXPECT_EQ(rig.AnswerTo(request)->status.ok(), full);
  }
}

}  // namespace hoistd::node_unreferenced_test
