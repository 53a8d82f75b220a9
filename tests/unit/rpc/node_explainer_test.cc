// Why a group is where it is, what would move it, and what it would cost.
#include "daemon/rpc/node_explainer.h"

#include <algorithm>
#include <string>

#include "daemon/base/status.h"
#include "daemon/convert/types_convert.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "tests/support/node_rig.h"
#include "tests/support/status_matchers.h"

namespace hoistd::node_explainer_test {

using pb::CopyExplanation;
using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::IsEmpty;
using testing::kPage;
using testing::NodeRig;
using ::testing::SizeIs;
using testing::StatusIs;
using By = pb::Keeper;

const TierAt kDevice = NodeRig::FirstDevice();

GroupKey Key(ModelId model, uint32_t group) {
  return {model, GroupIndex(group)};
}

absl::StatusOr<pb::ExplainResponse> Ask(NodeRig& rig, const std::string& model,
                                        const std::string& group = "") {
  pb::ExplainResponse explained;
  HOIST_RETURN_IF_ERROR(
      NodeExplainer(rig.node(), rig.now)
          .Explain(NodeRig::kAdmin, model, group, &explained));
  return explained;
}

CopyExplanation At(NodeRig& rig, TierAt at, const std::string& group = "g0") {
  const auto explained = Ask(rig, "m", group);
  EXPECT_OK(explained.status());
  EXPECT_THAT(explained->groups(), SizeIs(1));
  for (const CopyExplanation& copy : explained->groups(0).copies()) {
    if (copy.tier() == TierToProto(at.tier) &&
        copy.device() == at.device.number()) {
      return copy;
    }
  }
  ADD_FAILURE() << "no such tier";
  return {};
}

std::vector<int> Keepers(const CopyExplanation& copy) {
  std::vector<int> by;
  for (const pb::Keeper& keeper : copy.keepers()) by.push_back(keeper.by());
  return by;
}

TEST(NodeExplainer, WhatNobodyHasAskedForIsOnTheDiskAlone) {
  NodeRig rig({.host_bytes_per_second = 1e9});
  rig.AddModel(rig.Open(), "m", {2});
  const CopyExplanation device = At(rig, kDevice);
  EXPECT_EQ(device.residency(), pb::RESIDENCY_ABSENT);
  EXPECT_THAT(device.keepers(), IsEmpty());
  EXPECT_EQ(device.left(), CopyExplanation::LEFT_UNSPECIFIED);
  EXPECT_EQ(device.from(), pb::TIER_DISK);
  // It is read first, and then copied.
  EXPECT_GT(At(rig, OnHost()).bring_us(), 0u);
  EXPECT_GT(device.bring_us(), At(rig, OnHost()).bring_us());
  EXPECT_EQ(At(rig, OnDisk()).residency(), pb::RESIDENCY_PRESENT);
}

TEST(NodeExplainer, ALeaseKeepsItAndNamesItsSession) {
  NodeRig rig;
  const SessionId session = rig.Open();
  const ModelId model = rig.AddModel(session, "m", {2});
  const LeaseId lease = rig.StageNow(session, Key(model, 0));
  CopyExplanation copy = At(rig, kDevice);
  ASSERT_THAT(Keepers(copy), ElementsAre(By::BY_LEASE));
  EXPECT_EQ(copy.keepers(0).session_id(), session.number());
  EXPECT_EQ(copy.keepers(0).client_name(), "worker1");
  EXPECT_FALSE(copy.may_leave());
  EXPECT_EQ(copy.from(), pb::TIER_HOST);
  EXPECT_LT(copy.bring_us(), At(rig, OnHost()).bring_us());

  ASSERT_OK(rig.Release(session, lease));
  copy = At(rig, kDevice);
  EXPECT_THAT(copy.keepers(), IsEmpty());
  EXPECT_TRUE(copy.may_leave());
}

TEST(NodeExplainer, APinKeepsIt) {
  NodeRig rig;
  const ModelId model = rig.AddModel(rig.Open(), "m", {2});
  rig.Bring(Key(model, 0), OnHost(), /*pin=*/true);
  rig.FinishAll();
  EXPECT_THAT(Keepers(At(rig, OnHost())), ElementsAre(By::BY_PIN));
  EXPECT_FALSE(At(rig, OnHost()).may_leave());
  rig.Unpin("m");
  EXPECT_TRUE(At(rig, OnHost()).may_leave());
}

TEST(NodeExplainer, APlanKeepsResidentsAndStreamsTheRest) {
  NodeRig rig;
  const SessionId session = rig.Open();
  const ModelId model = rig.AddModel(session, "m", {2, 2, 2, 2});
  const PlanGrant plan =
      rig.PlanOf(rig.SetPlan(session, model, {0, 1, 2, 3}, 6));
  int residents = 0;
  for (const PlannedGroup& group : plan.groups) {
    const CopyExplanation copy =
        At(rig, kDevice, "g" + std::to_string(group.group.number()));
    EXPECT_THAT(Keepers(copy),
                ElementsAre(group.resident ? By::BY_RESIDENT : By::BY_STREAM));
    EXPECT_EQ(copy.keepers(0).plan_id(), plan.id.number());
    EXPECT_FALSE(copy.may_leave());
    residents += group.resident ? 1 : 0;
  }
  EXPECT_GT(residents, 0);
  EXPECT_LT(residents, 4);
  const auto streamed =
      std::find_if(plan.groups.begin(), plan.groups.end(),
                   [](const PlannedGroup& group) { return !group.resident; });
  rig.Hold(plan.id, {streamed->group.number()});
  rig.FinishAll();
  EXPECT_THAT(Keepers(At(rig, OnHost(),
                         "g" + std::to_string(streamed->group.number()))),
              ElementsAre(By::BY_HOLD));
}

TEST(NodeExplainer, WhoWaitsIsNamedAndSoIsWhatTheyWaitFor) {
  NodeRig rig({.device_pages = {4}});
  const SessionId holder = rig.Open(), other = rig.Open();
  const ModelId model = rig.AddModel(holder, "m", {3, 2});
  rig.StageNow(holder, Key(model, 0));
  rig.Stage(other, Key(model, 1));
  const CopyExplanation copy = At(rig, kDevice, "g1");
  EXPECT_EQ(copy.residency(), pb::RESIDENCY_ABSENT);
  ASSERT_THAT(Keepers(copy), ElementsAre(By::BY_WAIT));
  EXPECT_EQ(copy.keepers(0).session_id(), other.number());
  EXPECT_THAT(copy.blocked(), HasSubstr("12.0 KiB is leased by session"));
}

TEST(NodeExplainer, WhatIsOnItsWayIsKeptByItsCopy) {
  NodeRig rig;
  const SessionId session = rig.Open();
  const ModelId model = rig.AddModel(session, "m", {2});
  rig.Stage(session, Key(model, 0));
  EXPECT_EQ(At(rig, OnHost()).residency(), pb::RESIDENCY_FILLING);
  EXPECT_THAT(Keepers(At(rig, OnHost())), ::testing::Contains(By::BY_COPYING));
  EXPECT_FALSE(At(rig, OnHost()).may_leave());
}

TEST(NodeExplainer, APublishedOnlyCopyCannotLeave) {
  NodeRig rig;
  rig.Published(rig.Open(), "m", "g0", 2);
  const CopyExplanation copy = At(rig, OnHost());
  EXPECT_THAT(Keepers(copy), ElementsAre(By::BY_ONLY_COPY));
  EXPECT_FALSE(copy.may_leave());
  EXPECT_EQ(copy.from(), pb::TIER_UNSPECIFIED);
  EXPECT_EQ(At(rig, OnDisk()).residency(), pb::RESIDENCY_ABSENT);
}

// The promise: those that go before are those that an eviction takes first.
TEST(NodeExplainer, WhatGoesBeforeItDoesGoBeforeIt) {
  NodeRig rig({.device_pages = {6}});
  const SessionId session = rig.Open();
  const ModelId model = rig.AddModel(session, "m", {2, 2, 2, 2});
  for (const uint32_t group : {1u, 0u, 2u}) {
    ASSERT_OK(rig.Release(session, rig.StageNow(session, Key(model, group))));
    rig.Advance(absl::Seconds(1));
  }
  EXPECT_EQ(At(rig, kDevice, "g1").before_bytes(), 0u);
  EXPECT_EQ(At(rig, kDevice, "g0").before_bytes(), 2 * kPage);
  EXPECT_EQ(At(rig, kDevice, "g2").before_bytes(), 4 * kPage);
  EXPECT_EQ(At(rig, kDevice, "g2").free_bytes(), 0u);

  rig.StageNow(session, Key(model, 3));
  EXPECT_FALSE(rig.Has(Key(model, 1), kDevice));
  EXPECT_TRUE(rig.Has(Key(model, 0), kDevice));
  const CopyExplanation gone = At(rig, kDevice, "g1");
  EXPECT_EQ(gone.left(), CopyExplanation::LEFT_EVICTED);
  EXPECT_EQ(gone.left_for(), "m");
}

TEST(NodeExplainer, ALoanIsToldOfTheLenderAndOfTheOther) {
  NodeRig rig({.device_pages = {4}});
  const SessionId lender = rig.Open(), other = rig.Open();
  const auto plan = [&](SessionId session, const std::string& name) {
    SetPlanArgs args = rig.PlanArgs(rig.AddModel(session, name, {2, 2}), {0, 1},
                                    0, absl::Seconds(10));
    args.gives_way = true;
    return rig.SetPlan(session, args);
  };
  plan(lender, "m");
  plan(other, "n");
  rig.AddModel(other, "neither", {2});
  for (const std::string model : {"m", "n"}) {
    const auto explained = Ask(rig, model);
    ASSERT_OK(explained.status());
    ASSERT_THAT(explained->loans(), SizeIs(1));
    EXPECT_EQ(explained->loans(0).session_id(), lender.number());
    EXPECT_EQ(explained->loans(0).cause(), pb::Loan::CAUSE_NEED);
    EXPECT_EQ(explained->loans(0).to_session_id(), other.number());
    EXPECT_EQ(explained->loans(0).to_model(), "n");
    EXPECT_FALSE(explained->loans(0).lent());
  }
  EXPECT_THAT(Ask(rig, "neither")->loans(), IsEmpty());
}

TEST(NodeExplainer, WhatAnAdminEvictedSaysSo) {
  NodeRig rig;
  const SessionId session = rig.Open();
  const ModelId model = rig.AddModel(session, "m", {2});
  ASSERT_OK(rig.Release(session, rig.StageNow(session, Key(model, 0))));
  rig.Evict("m", kDevice);
  rig.Advance(absl::Seconds(3));
  const CopyExplanation gone = At(rig, kDevice);
  EXPECT_EQ(gone.left(), CopyExplanation::LEFT_BY_ADMIN);
  EXPECT_EQ(gone.left_ms(), 3000u);
  // Had again, it is there as any other.
  rig.StageNow(session, Key(model, 0));
  EXPECT_EQ(At(rig, kDevice).left(), CopyExplanation::LEFT_UNSPECIFIED);
}

TEST(NodeExplainer, AnAnnouncedOrderTellsWhenItIsNeeded) {
  NodeRig rig;
  const SessionId session = rig.Open();
  const ModelId model = rig.AddModel(session, "m", {2, 2});
  EXPECT_FALSE(At(rig, OnHost()).use_is_known());
  ASSERT_OK(rig.SetOrder(session, model, {0, 1}));
  EXPECT_TRUE(At(rig, OnHost()).use_is_known());
}

TEST(NodeExplainer, AWholeModelIsEachOfItsGroupsInOrder) {
  NodeRig rig;
  rig.AddModel(rig.Open(), "m", {2, 2});
  const auto explained = Ask(rig, "m");
  ASSERT_OK(explained.status());
  ASSERT_THAT(explained->groups(), SizeIs(2));
  EXPECT_EQ(explained->groups(0).name(), "g0");
  EXPECT_EQ(explained->groups(1).name(), "g1");
}

TEST(NodeExplainer, WhatIsNotThereIsNotFound) {
  NodeRig rig;
  rig.AddModel(rig.Open(), "m", {2});
  EXPECT_THAT(Ask(rig, "n").status(), StatusIs(absl::StatusCode::kNotFound));
  EXPECT_THAT(Ask(rig, "m", "x").status(),
              StatusIs(absl::StatusCode::kNotFound, HasSubstr("groups m")));
}

}  // namespace hoistd::node_explainer_test
