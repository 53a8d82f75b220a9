// A hoistd that dies, and the next one, which goes on with what it left.
#include <algorithm>
#include <variant>
#include <vector>

#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "tests/support/node_rig.h"
#include "tests/support/status_matchers.h"

namespace hoistd::node_death_test {

using ::testing::ElementsAre;
using ::testing::IsEmpty;
using testing::kPage;
using testing::NodeRig;
using ::testing::SizeIs;

class NodeDeath : public ::testing::Test {
 protected:
  NodeRig rig_{{.host_pages = 16, .device_pages = {8}, .slab_pages = 2}};
};

TEST_F(NodeDeath, LeasesAndWhatIsResidentStay) {
  const SessionId session = rig_.Open(1);
  const ModelId model = rig_.AddModel(session, "m", {1, 2, 1});
  const LeaseId lease = rig_.StageNow(session, {model, GroupIndex(1)});
  rig_.Release(session, rig_.StageNow(session, {model, GroupIndex(2)}))
      .IgnoreError();
  ASSERT_TRUE(rig_.Die());
  EXPECT_EQ(rig_.TierOf(NodeRig::FirstDevice()).leased_bytes, 2 * kPage);
  // Nothing moves for what is there.
  const SessionId other = rig_.Open(1);
  rig_.LeaseOf(rig_.Stage(other, {model, GroupIndex(2)}));
  rig_.LeaseOf(rig_.Stage(other, {model, GroupIndex(1)}));
  EXPECT_THAT(rig_.Moving(), IsEmpty());
  EXPECT_OK(rig_.Release(session, lease));
  rig_.Close(session);
  rig_.Close(other);
  EXPECT_EQ(rig_.TierOf(NodeRig::FirstDevice()).leased_bytes, 0u);
  EXPECT_OK(rig_.Forget(model));
}

TEST_F(NodeDeath, WhatPlansNeedOnTheHostIsWaitedForAndNotReadAgain) {
  const SessionId session = rig_.Open(1);
  const ModelId model = rig_.AddModel(session, "m", {2, 2, 2, 2});
  const PlanGrant plan =
      rig_.PlanOf(rig_.SetPlan(session, model, {0, 1, 2, 3}, 5));
  rig_.Hold(plan.id, {0, 1, 2, 3});
  rig_.FinishAll();
  EXPECT_THAT(rig_.plans().at(plan.id).holds, SizeIs(4));
  for (const uint64_t ready : {0, 3, 16}) {
    ASSERT_TRUE(rig_.Die(ready));
    rig_.Hold(plan.id, {0, 1, 2, 3});
    EXPECT_THAT(rig_.Moving<FilesToHost>(), IsEmpty());
    rig_.GrowHost(5);
    rig_.GrowHost(16);
    EXPECT_THAT(rig_.Moving<FilesToHost>(), IsEmpty());
    EXPECT_THAT(rig_.plans().at(plan.id).holds, SizeIs(4));
  }
  EXPECT_OK(rig_.EndPlan(session, plan.id));
  rig_.FreePlan(plan.id);
}

TEST_F(NodeDeath, APlanThatWasBeingEndedEnds) {
  const SessionId session = rig_.Open(1);
  const ModelId model = rig_.AddModel(session, "m", {2, 2, 2, 2});
  const PlanGrant plan =
      rig_.PlanOf(rig_.SetPlan(session, model, {0, 1, 2, 3}, 5));
  EXPECT_OK(rig_.EndPlan(session, plan.id));
  ASSERT_TRUE(rig_.Die());
  // By what its session says.
  ASSERT_THAT(rig_.ended(), SizeIs(1));
  rig_.FreePlan(plan.id);
  EXPECT_EQ(rig_.TierOf(NodeRig::FirstDevice()).leased_bytes, 0u);
}

// A session that has not said yet which models it uses may use any; its word
// lets another's forget take effect, or ends that.
TEST_F(NodeDeath, AModelIsForgottenOnceAllHaveSaidThatTheyDoNotUseIt) {
  const SessionId maker = rig_.Open(1), other = rig_.Open(1);
  const ModelId gone = rig_.AddModel(maker, "gone", {2});
  const ModelId used = rig_.AddModel(maker, "used", {2});
  ASSERT_OK(rig_.node().tenure().Find(other, "used"));
  rig_.node().tenure().sessions().Assume(other, {gone, used});
  for (const ModelId model : {gone, used}) {
    ASSERT_OK(rig_.SetOrder(maker, model, {}, /*forget=*/true));
  }
  EXPECT_THAT(rig_.forgotten(), IsEmpty());
  Effects effects;
  rig_.node().Resume(other, {.models = {{used}}}, rig_.now, effects);
  EXPECT_THAT(effects.forgotten, ElementsAre(gone));
}

// As long as nobody knows which slabs it has open, each may be one; by when its
// plans end, that is known.
TEST_F(NodeDeath, NobodyIsAskedToCloseWhatTheyHaveJustSaidTheyHaveNot) {
  const SessionId session = rig_.Open(1);
  const ModelId model = rig_.AddModel(session, "m", {2, 2, 2});
  ASSERT_OK(
      rig_.Release(session, rig_.StageNow(session, {model, GroupIndex(0)})));
  const PlanGrant plan =
      rig_.PlanOf(rig_.SetPlan(session, model, {0, 1, 2}, 6));
  const SessionId other = rig_.Open(2);
  const GroupKey large = {rig_.AddModel(other, "n", {8}), GroupIndex(0)};
  const RequestId stage = rig_.Stage(other, large);
  ASSERT_EQ(rig_.AnswerTo(stage), nullptr);  // It waits for the plan's end.
  ASSERT_THAT(rig_.asks(), IsEmpty());
  Effects effects;
  rig_.node().Resume(session, /*has=*/{}, rig_.now, effects);
  ASSERT_THAT(effects.ended, SizeIs(1));
  EXPECT_EQ(effects.ended[0].plan, plan.id);
  EXPECT_THAT(effects.asks, IsEmpty());
  ASSERT_FALSE(effects.slabs.empty());
  EXPECT_EQ(effects.slabs[0].kind, SlabWork::Kind::kDestroy);
}

// Its ring may still be copied into by who dies.
TEST_F(NodeDeath, ThePlanOfASessionThatEndedIsGone) {
  const SessionId session = rig_.Open(1);
  const SessionId other = rig_.Open(1);
  const ModelId model = rig_.AddModel(session, "m", {2, 2, 2, 2});
  rig_.PlanOf(rig_.SetPlan(session, model, {0, 1, 2, 3}, 5));
  rig_.StageNow(other, {model, GroupIndex(1)});
  rig_.Close(session);
  ASSERT_TRUE(rig_.Die());
  EXPECT_NE(rig_.node().tenure().PeerOf(other), nullptr);
  EXPECT_THAT(rig_.plans(), IsEmpty());
  EXPECT_EQ(rig_.TierOf(NodeRig::FirstDevice()).leased_bytes, 2 * kPage);
}

TEST_F(NodeDeath, WhatLacksOneGroupIsNotTakenOver) {
  const SessionId session = rig_.Open(1);
  const GroupKey key = rig_.Published(session, "p", "a", 1);
  rig_.Published(session, "p", "b", 1);
  rig_.StageNow(session, key);
  // Without it the numbers of the others are not what they were.
  rig_.LoseOnHost(key);
  EXPECT_FALSE(rig_.Die());
  EXPECT_EQ(rig_.node().tenure().PeerOf(session), nullptr);
  EXPECT_EQ(rig_.TierOf(NodeRig::FirstDevice()).allocated_bytes, 0u);
}

// Who dies in between leaves images that may come back under another number,
// and then of nothing on devices could be said of which model it is.
TEST_F(NodeDeath, AForgottenModelLeavesDevicesBeforeTheHost) {
  const SessionId session = rig_.Open(1);
  const GroupKey a = rig_.Published(session, "p", "a", 1);
  const GroupKey b = rig_.Published(session, "p", "b", 1);
  for (const GroupKey key : {a, b}) {
    ASSERT_OK(rig_.Release(session, rig_.StageNow(session, key)));
  }
  ASSERT_OK(rig_.Forget(a.model));
  const auto from_devices = [](const Persisted& kept) {
    return std::holds_alternative<PersistedCopy>(kept);
  };
  const std::vector<Persisted>& told = rig_.told();
  EXPECT_EQ(std::ranges::count_if(told, from_devices), 2);
  EXPECT_TRUE(std::ranges::is_partitioned(told, from_devices));
  EXPECT_THAT(told, SizeIs(2 + 2 + 1));  // Copies, images, the model.
}

TEST_F(NodeDeath, WhatIsPinnedOnADeviceIsNeverThereToBeEvicted) {
  const SessionId session = rig_.Open(1);
  const ModelId model = rig_.AddModel(session, "m", {2, 2, 2, 2});
  rig_.Bring({model, GroupIndex(1)}, NodeRig::FirstDevice(), /*pin=*/true);
  rig_.FinishAll();
  // With no host pool to bring anything from.
  ASSERT_TRUE(rig_.Die(0));
  EXPECT_EQ(rig_.TierOf(NodeRig::FirstDevice()).pinned_bytes, 2 * kPage);
  rig_.GrowHost(16);
  for (const uint32_t group : {0, 2, 3}) {
    rig_.StageNow(session, {model, GroupIndex(group)});
  }
  rig_.Stage(session, {rig_.AddModel(session, "n", {3}), GroupIndex(0)});
  rig_.FinishAll();
  EXPECT_TRUE(rig_.Has({model, GroupIndex(1)}, NodeRig::FirstDevice()));
  EXPECT_EQ(rig_.Unpin("m").groups, 1u);
  ASSERT_TRUE(rig_.Die());
  EXPECT_EQ(rig_.TierOf(NodeRig::FirstDevice()).pinned_bytes, 0u);
}

TEST_F(NodeDeath, WhatIsPinnedOnTheHostIsSoAgainWithoutBeingRead) {
  const SessionId session = rig_.Open(1);
  const ModelId model = rig_.AddModel(session, "m", {2, 2});
  const GroupKey published = rig_.Published(session, "p", "a", 3);
  rig_.Bring({model, GroupIndex(1)}, OnHost(), /*pin=*/true);
  rig_.Bring(published, OnHost(), /*pin=*/true);
  rig_.FinishAll();
  ASSERT_TRUE(rig_.Die(0));
  EXPECT_EQ(rig_.TierOf(OnHost()).pinned_bytes, 0u);
  rig_.GrowHost(16);
  EXPECT_THAT(rig_.Moving<FilesToHost>(), IsEmpty());
  rig_.FinishAll();
  EXPECT_EQ(rig_.TierOf(OnHost()).pinned_bytes, 5 * kPage);
  // And by the one after that, though this one has only believed it.
  ASSERT_TRUE(rig_.Die());
  rig_.FinishAll();
  EXPECT_EQ(rig_.TierOf(OnHost()).pinned_bytes, 5 * kPage);
}

TEST_F(NodeDeath, APinGoesWithItsModel) {
  const SessionId session = rig_.Open(1);
  const ModelId model = rig_.AddModel(session, "m", {2});
  rig_.Bring({model, GroupIndex(0)}, OnHost(), /*pin=*/true);
  rig_.FinishAll();
  EXPECT_OK(rig_.Forget(model));
  ASSERT_TRUE(rig_.Die());
  const ModelId again = rig_.AddModel(session, "m", {2});
  rig_.Bring({again, GroupIndex(0)}, OnHost(), /*pin=*/false);
  rig_.FinishAll();
  EXPECT_EQ(rig_.TierOf(OnHost()).pinned_bytes, 0u);
}

}  // namespace hoistd::node_death_test
