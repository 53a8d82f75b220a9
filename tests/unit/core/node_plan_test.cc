// Plans in the node's books: what is promised, the rings, the holds.
#include <numeric>

#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "tests/support/node_rig.h"
#include "tests/support/status_matchers.h"

namespace hoistd::node_plan_test {

using ::testing::AllOf;
using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::IsEmpty;
using testing::IsOk;
using testing::kPage;
using testing::NodeRig;
using testing::NodeRigOptions;
using ::testing::Pair;
using ::testing::SizeIs;
using testing::StatusIs;

constexpr auto kExhausted = absl::StatusCode::kResourceExhausted;
const TierAt kDevice = NodeRig::FirstDevice();

GroupKey Key(ModelId model, uint32_t group) {
  return {model, GroupIndex(group)};
}

std::vector<uint32_t> Upto(uint32_t groups) {
  std::vector<uint32_t> order(groups);
  std::iota(order.begin(), order.end(), 0u);
  return order;
}

std::vector<uint32_t> Residents(const PlanGrant& grant) {
  std::vector<uint32_t> residents;
  for (const PlannedGroup& group : grant.groups) {
    if (group.resident) residents.push_back(group.group.number());
  }
  return residents;
}

// The message's number before `unit` bytes, in pages: "a budget of 8.0 KiB".
uint64_t PagesAfter(absl::string_view message, absl::string_view words) {
  const size_t at = message.find(words);
  if (at == absl::string_view::npos) return 0;
  const double number = atof(message.substr(at + words.size()).data());
  return static_cast<uint64_t>(number * 1024) / kPage;
}

class NodePlan : public ::testing::Test {
 protected:
  // A model of `groups` groups of a page.
  ModelId Model(const std::string& name, uint32_t groups) {
    return rig_.AddModel(session_, name, std::vector<uint64_t>(groups, 1));
  }

  NodeRig rig_{{.host_pages = 16, .device_pages = {8}}};
  SessionId session_ = rig_.Open();
};

TEST_F(NodePlan, ResidentsAndRingStayWithinTheBudget) {
  const ModelId model = Model("m", 8);
  for (uint64_t budget = 1; budget <= 8; ++budget) {
    const PlanGrant plan =
        rig_.PlanOf(rig_.SetPlan(session_, model, Upto(8), budget));
    EXPECT_LE(plan.ring_bytes + plan.resident_bytes, budget * kPage);
    EXPECT_EQ(plan.ring_bytes == 0, budget == 8);
    // A group that shares its slot with none is copied in the first pass only.
    EXPECT_LE(plan.resident_bytes + plan.streamed_bytes, 8 * kPage);
    EXPECT_EQ(rig_.TierOf(kDevice).used_bytes, plan.ring_bytes);
    ASSERT_OK(rig_.EndPlan(session_, plan.id));
    rig_.FreePlan(plan.id);
  }
  EXPECT_EQ(rig_.TierOf(kDevice).used_bytes, 0u);
}

TEST_F(NodePlan, ABlockIsResidentInPart) {
  const ModelId model = Model("m", 8);
  SetPlanArgs args = rig_.PlanArgs(model, Upto(8), 6, absl::Seconds(10));
  args.blocks = {4, 4, 1, 1, 9, 9, 0, 0};
  const PlanGrant plan = rig_.PlanOf(rig_.SetPlan(session_, args));
  const std::vector<uint32_t> residents = Residents(plan);
  ASSERT_THAT(residents, SizeIs(4));
  for (size_t i = 0; i < residents.size(); ++i) {
    EXPECT_EQ(residents[i] / 2, i);
  }
  EXPECT_EQ(plan.ring_bytes, 2 * kPage);
}

TEST_F(NodePlan, BlocksAreOfTheModelsGroups) {
  SetPlanArgs args =
      rig_.PlanArgs(Model("m", 4), Upto(4), 2, absl::Seconds(10));
  args.blocks = {0, 0, 1};
  EXPECT_THAT(rig_.AnswerTo(rig_.SetPlan(session_, args))->status,
              StatusIs(absl::StatusCode::kInvalidArgument,
                       HasSubstr("blocks for 3 groups; model m has 4")));
}

TEST_F(NodePlan, TheLaneOrderNamesStreamedGroupsByRank) {
  const ModelId model = Model("m", 6);
  const PlanGrant plan =
      rig_.PlanOf(rig_.SetPlan(session_, model, {5, 4, 3, 5, 2, 1, 0}, 4));
  std::vector<uint32_t> streamed;
  for (const PlannedGroup& group : plan.groups) {
    if (!group.resident) streamed.push_back(group.group.number());
  }
  std::vector<uint32_t> expected;
  for (const uint32_t group : {5u, 4u, 3u, 5u, 2u, 1u, 0u}) {
    if (std::find(streamed.begin(), streamed.end(), group) != streamed.end()) {
      expected.push_back(group);
    }
  }
  ASSERT_FALSE(expected.empty());
  std::vector<uint32_t> named;
  for (const uint32_t rank : plan.lane_order) {
    named.push_back(streamed.at(rank));
  }
  EXPECT_EQ(named, expected);
}

TEST_F(NodePlan, TheMinimumIsNamedAndIsEnough) {
  const ModelId model = rig_.AddModel(session_, "m", {1, 3, 2});
  const absl::Status refused = rig_.CheckPlan(session_, model, Upto(3), 2);
  ASSERT_THAT(refused, StatusIs(kExhausted, HasSubstr("12288 bytes")));
  const RequestId least = rig_.SetPlan(session_, model, Upto(3), 3);
  EXPECT_EQ(rig_.PlanOf(least).ring_bytes, 3 * kPage);
}

TEST_F(NodePlan, BadNumbersAreRefused) {
  const ModelId model = Model("m", 2);
  const auto invalid = absl::StatusCode::kInvalidArgument;
  const auto not_found = absl::StatusCode::kNotFound;
  EXPECT_THAT(rig_.CheckPlan(session_, model, {}, 2),
              StatusIs(invalid, HasSubstr("order is empty")));
  EXPECT_THAT(rig_.CheckPlan(session_, model, {2}, 2),
              StatusIs(invalid, HasSubstr("names group 2")));
  EXPECT_THAT(rig_.CheckPlan(session_, ModelId(99), {0}, 2),
              StatusIs(not_found, HasSubstr("")));
  EXPECT_THAT(rig_.CheckPlan(session_, model, {0}, 2, PlanId(99)),
              StatusIs(not_found, HasSubstr("no plan 99")));
  const RequestId device = rig_.SetPlan(session_, model, {0, 1}, 2,
                                        absl::Seconds(1), std::nullopt, 7);
  EXPECT_THAT(rig_.AnswerTo(device)->status,
              StatusIs(invalid, HasSubstr("no device 7")));
  const PlanGrant plan = rig_.PlanOf(rig_.SetPlan(session_, model, {0, 1}, 1));
  const SessionId other = rig_.Open();
  EXPECT_THAT(rig_.CheckPlan(other, model, {0}, 2, plan.id),
              StatusIs(not_found, HasSubstr("no plan")));
  EXPECT_THAT(rig_.EndPlan(other, plan.id),
              StatusIs(not_found, HasSubstr("no plan")));
}

TEST_F(NodePlan, BudgetOfZeroTakesWhatCanBePromised) {
  const ModelId other = Model("other", 3);
  for (const uint32_t g : {0u, 1u, 2u}) {
    rig_.StageNow(session_, Key(other, g));
  }
  const ModelId model = Model("m", 8);
  const PlanGrant plan = rig_.PlanOf(rig_.SetPlan(session_, model, Upto(8), 0));
  EXPECT_EQ(plan.budget_bytes, 5 * kPage);
}

TEST_F(NodePlan, BudgetOfZeroIsNeverRefusedForLeasesOfItsOwnModel) {
  const ModelId model = Model("m", 10);
  // Leased, and perhaps no residents of the plan.
  for (const uint32_t g : {1u, 2u, 3u, 5u}) {
    rig_.StageNow(session_, Key(model, g));
  }
  const PlanGrant plan =
      rig_.PlanOf(rig_.SetPlan(session_, model, Upto(10), 0));
  EXPECT_GE(plan.budget_bytes, 4 * kPage);
}

TEST_F(NodePlan, WhatCannotBePromisedIsRefusedWithABudgetThatWouldDo) {
  for (const uint32_t leased : {1u, 3u, 5u}) {
    SCOPED_TRACE(leased);
    NodeRig rig({.host_pages = 24, .device_pages = {8}});
    const SessionId session = rig.Open();
    const ModelId own = rig.AddModel(session, "m", {1, 1, 1, 1, 1, 1, 1, 1, 1});
    for (uint32_t g = 0; g < leased; ++g) {
      rig.StageNow(session, Key(own, 8 - g));
    }
    const ModelId other =
        rig.AddModel(session, "other", {1, 1, 1, 1, 1, 1, 1, 1, 1});
    for (const ModelId model : {other, own}) {
      const absl::Status refused = rig.CheckPlan(session, model, Upto(9), 20);
      if (refused.ok()) continue;  // All of its own are resident.
      ASSERT_THAT(refused, StatusIs(kExhausted, HasSubstr("would be enough")));
      const uint64_t pages = PagesAfter(refused.message(), "a budget of ");
      EXPECT_GE(pages, 8 - leased);
      EXPECT_OK(rig.CheckPlan(session, model, Upto(9), pages));
    }
  }
}

TEST_F(NodePlan, ResidentsOfOneModelAreCountedOnce) {
  const ModelId model = Model("m", 6);
  const PlanGrant first =
      rig_.PlanOf(rig_.SetPlan(session_, model, Upto(6), 6));
  EXPECT_EQ(Residents(first).size(), 6u);
  const SessionId second = rig_.Open();
  const PlanGrant same = rig_.PlanOf(rig_.SetPlan(second, model, Upto(6), 6));
  EXPECT_EQ(Residents(same).size(), 6u);
  // What is another's must fit beside them.
  const ModelId other = Model("other", 3);
  EXPECT_THAT(
      rig_.CheckPlan(second, other, Upto(3), 3),
      StatusIs(kExhausted, HasSubstr("a budget of 8.0 KiB would be enough")));
  EXPECT_OK(rig_.CheckPlan(second, other, Upto(3), 2));
}

TEST_F(NodePlan, ResidentsCanBeLeasedWhateverOthersStage) {
  const ModelId model = Model("m", 6);
  const PlanGrant plan = rig_.PlanOf(rig_.SetPlan(session_, model, Upto(6), 5));
  const std::vector<uint32_t> residents = Residents(plan);
  ASSERT_GE(residents.size(), 2u);
  const SessionId greedy = rig_.Open();
  const ModelId other = Model("other", 8);
  std::vector<RequestId> stages;
  for (uint32_t g = 0; g < 8; ++g) {
    stages.push_back(rig_.Stage(greedy, Key(other, g), absl::Seconds(30)));
    rig_.FinishAll();
  }
  // It gets what is left beside the promise, and no more.
  const size_t left = 8 - (plan.resident_bytes + plan.ring_bytes) / kPage;
  EXPECT_THAT(rig_.leases(), SizeIs(left));
  for (const uint32_t g : residents) {
    const RequestId stage =
        rig_.Stage(session_, Key(model, g), absl::ZeroDuration());
    rig_.FinishAll();
    EXPECT_OK(rig_.AnswerTo(stage)->status);
  }
  EXPECT_THAT(rig_.leases(), SizeIs(left + residents.size()));
  rig_.Advance(absl::Seconds(31));
  EXPECT_THAT(rig_.AnswerTo(stages.back())->status,
              StatusIs(kExhausted, HasSubstr("promised to plans")));
}

TEST_F(NodePlan, AnIdleCopyIsNotLeasedFromUnderAPromise) {
  const ModelId other = Model("other", 4);
  std::vector<LeaseId> leases;
  for (uint32_t g = 0; g < 4; ++g) {
    leases.push_back(rig_.StageNow(session_, Key(other, g)));
  }
  for (const LeaseId lease : leases) ASSERT_OK(rig_.Release(session_, lease));
  const ModelId model = Model("m", 8);
  const PlanGrant plan = rig_.PlanOf(rig_.SetPlan(session_, model, Upto(8), 8));
  const SessionId greedy = rig_.Open();
  const RequestId stage = rig_.Stage(greedy, Key(other, 0), absl::Seconds(30));
  EXPECT_TRUE(rig_.waiting(stage));
  for (uint32_t g = 0; g < 8; ++g) rig_.StageNow(session_, Key(model, g));
  EXPECT_THAT(rig_.leases(), SizeIs(8));
  ASSERT_OK(rig_.EndPlan(session_, plan.id));
  rig_.FreePlan(plan.id);
  EXPECT_TRUE(rig_.waiting(stage));
  ASSERT_OK(rig_.Release(session_, rig_.leases().begin()->first));
  rig_.FinishAll();
  EXPECT_OK(rig_.AnswerTo(stage)->status);
}

TEST_F(NodePlan, ASessionsBudgetBoundsPlansAndLeasesTogether) {
  const ModelId a = Model("a", 4);
  const ModelId b = Model("b", 4);
  const SessionId small = rig_.Open(1, /*budget_pages=*/4);
  EXPECT_THAT(rig_.CheckPlan(small, a, Upto(4), 5),
              StatusIs(kExhausted, HasSubstr("16.0 KiB")));
  const PlanGrant plan = rig_.PlanOf(rig_.SetPlan(small, a, Upto(4), 3));
  rig_.StageNow(small, Key(b, 0));
  // The residents' room is the plan's, staged or not.
  EXPECT_THAT(rig_.AnswerTo(rig_.Stage(small, Key(b, 1)))->status,
              StatusIs(kExhausted, HasSubstr("this session may")));
  for (const uint32_t g : Residents(plan)) rig_.StageNow(small, Key(a, g));
  EXPECT_THAT(rig_.CheckPlan(small, b, Upto(4), 2),
              StatusIs(kExhausted, HasSubstr("this session may")));
  // b's first group is leased already: nothing more is needed for it.
  EXPECT_OK(rig_.CheckPlan(small, b, {0}, 1));
}

TEST_F(NodePlan, ARingWaitsForSpaceUntilItsDeadline) {
  const ModelId other = Model("other", 8);
  const SessionId holder = rig_.Open();
  const LeaseId middle = rig_.StageNow(holder, Key(other, 0));
  rig_.StageNow(holder, Key(other, 1));
  const LeaseId last = rig_.StageNow(holder, Key(other, 2));
  rig_.StageNow(holder, Key(other, 3));
  ASSERT_OK(rig_.Release(holder, middle));
  ASSERT_OK(rig_.Release(holder, last));
  // Six pages are promisable, but no five of them lie side by side.
  const ModelId model = rig_.AddModel(session_, "m", {5, 5});
  const RequestId plan =
      rig_.SetPlan(session_, model, {0, 1}, 5, absl::Seconds(5));
  ASSERT_TRUE(rig_.waiting(plan));
  EXPECT_LE(rig_.node().NextDeadline(), rig_.now + absl::Seconds(5));
  rig_.Advance(absl::Seconds(6));
  EXPECT_THAT(rig_.AnswerTo(plan)->status,
              StatusIs(kExhausted, AllOf(HasSubstr("no space for the plan"),
                                         HasSubstr("worker1"))));
  const RequestId again =
      rig_.SetPlan(session_, model, {0, 1}, 5, absl::Seconds(5));
  ASSERT_TRUE(rig_.waiting(again));
  rig_.Close(holder);
  EXPECT_EQ(rig_.PlanOf(again).ring_bytes, 5 * kPage);
}

TEST_F(NodePlan, ARingWithoutTimeToWaitIsRefusedAtOnce) {
  const ModelId other = Model("other", 8);
  std::vector<LeaseId> leases;
  for (uint32_t g = 0; g < 8; ++g) {
    leases.push_back(rig_.StageNow(session_, Key(other, g)));
  }
  for (const uint32_t g : {0u, 2u, 4u, 6u}) {
    ASSERT_OK(rig_.Release(session_, leases[g]));
  }
  const ModelId model = rig_.AddModel(session_, "m", {2, 2});
  const RequestId plan =
      rig_.SetPlan(session_, model, {0, 1}, 2, absl::ZeroDuration());
  ASSERT_FALSE(rig_.waiting(plan));
  EXPECT_THAT(rig_.AnswerTo(plan)->status, StatusIs(kExhausted, HasSubstr("")));
}

TEST_F(NodePlan, IdleCopiesLeaveForARing) {
  const ModelId other = Model("other", 8);
  for (uint32_t g = 0; g < 8; ++g) {
    ASSERT_OK(rig_.Release(session_, rig_.StageNow(session_, Key(other, g))));
  }
  const ModelId model = Model("m", 9);
  const PlanGrant plan = rig_.PlanOf(
      rig_.SetPlan(session_, model, Upto(9), 2, absl::ZeroDuration()));
  EXPECT_EQ(plan.ring_bytes, 2 * kPage);
  EXPECT_EQ(rig_.counters().device_evictions, 2u);
}

TEST_F(NodePlan, ARingIsGivenBackOnlyWhenNothingCopiesIntoItAnyMore) {
  const ModelId model = Model("m", 9);
  const PlanGrant plan = rig_.PlanOf(rig_.SetPlan(session_, model, Upto(9), 2));
  ASSERT_OK(rig_.EndPlan(session_, plan.id));
  EXPECT_EQ(rig_.node().tenure().FindPlan(plan.id), nullptr);
  EXPECT_THAT(rig_.node().tenure().plans().LiveOf(session_), IsEmpty());
  EXPECT_EQ(rig_.TierOf(kDevice).used_bytes, 2 * kPage);
  EXPECT_THAT(rig_.EndPlan(session_, plan.id),
              StatusIs(absl::StatusCode::kNotFound, HasSubstr("no plan")));
  rig_.FreePlan(plan.id);
  EXPECT_EQ(rig_.TierOf(kDevice).used_bytes, 0u);
}

TEST_F(NodePlan, ClosingTheSessionEndsItsPlansOnce) {
  const ModelId model = Model("m", 9);
  const PlanGrant a = rig_.PlanOf(rig_.SetPlan(session_, model, Upto(9), 2));
  const PlanGrant b = rig_.PlanOf(rig_.SetPlan(session_, model, Upto(9), 3));
  rig_.Hold(a.id, {0, 1});
  ASSERT_OK(rig_.EndPlan(session_, b.id));
  rig_.Close(session_);
  EXPECT_THAT(rig_.ended(), SizeIs(2));
  rig_.FinishAll();
  rig_.FreePlan(a.id);
  rig_.FreePlan(b.id);
  EXPECT_OK(rig_.Forget(model));
  EXPECT_EQ(rig_.TierOf(kDevice).used_bytes, 0u);
  EXPECT_EQ(rig_.TierOf(OnHost()).used_bytes, 0u);
}

TEST_F(NodePlan, AWaitingPlanGoesWithItsSession) {
  const SessionId holder = rig_.Open();
  const ModelId other = Model("other", 8);
  for (const uint32_t g : {0u, 1u, 2u, 3u}) {
    const LeaseId lease = rig_.StageNow(holder, Key(other, g));
    if (g % 2 == 0) {
      ASSERT_OK(rig_.Release(holder, lease));
    }
  }
  const ModelId model = rig_.AddModel(holder, "m", {6, 6});
  const RequestId plan =
      rig_.SetPlan(session_, model, {0, 1}, 6, absl::Seconds(5));
  ASSERT_TRUE(rig_.waiting(plan));
  rig_.Close(session_);
  rig_.Close(holder);
  EXPECT_THAT(rig_.plans(), IsEmpty());
  EXPECT_EQ(rig_.node().NextDeadline(), absl::InfiniteFuture());
}

TEST_F(NodePlan, AReplacedPlansMemoryDoesNotCountAgainstTheNewOne) {
  const ModelId model = Model("m", 9);
  const PlanGrant old = rig_.PlanOf(rig_.SetPlan(session_, model, Upto(9), 8));
  for (const uint32_t g : Residents(old))
    rig_.StageNow(session_, Key(model, g));
  EXPECT_THAT(rig_.CheckPlan(session_, Model("n", 9), Upto(9), 7),
              StatusIs(kExhausted, HasSubstr("")));
  EXPECT_OK(rig_.CheckPlan(session_, Model("n", 9), Upto(9), 7, old.id));
  EXPECT_OK(rig_.CheckPlan(session_, model, Upto(9), 4, old.id));
}

TEST_F(NodePlan, AFailingCheckLeavesTheOldPlanStanding) {
  const ModelId model = Model("m", 9);
  const PlanGrant old = rig_.PlanOf(rig_.SetPlan(session_, model, Upto(9), 2));
  EXPECT_THAT(rig_.CheckPlan(session_, model, {77}, 2, old.id),
              StatusIs(absl::StatusCode::kInvalidArgument, HasSubstr("77")));
  EXPECT_NE(rig_.node().tenure().FindPlan(old.id), nullptr);
  EXPECT_THAT(rig_.ended(), IsEmpty());
}

TEST_F(NodePlan, AModelWithAPlanIsNotForgotten) {
  const ModelId model = Model("m", 9);
  const PlanGrant plan = rig_.PlanOf(rig_.SetPlan(session_, model, Upto(9), 2));
  EXPECT_THAT(rig_.Forget(model),
              StatusIs(absl::StatusCode::kFailedPrecondition,
                       HasSubstr("hoistctl plans")));
  ASSERT_OK(rig_.EndPlan(session_, plan.id));
  EXPECT_FALSE(rig_.Forget(model).ok());
  rig_.FreePlan(plan.id);
  EXPECT_OK(rig_.Forget(model));
}

TEST_F(NodePlan, DrainingRefusesPlansOfModelsThatTheSessionDoesNotUse) {
  const ModelId model = Model("m", 9);
  const SessionId late = rig_.Open();
  rig_.Drain(true);
  const auto refused =
      StatusIs(absl::StatusCode::kUnavailable, HasSubstr("draining"));
  EXPECT_THAT(rig_.node().tenure().Find(late, "m"), refused);
  const RequestId plan = rig_.SetPlan(late, model, Upto(9), 2);
  EXPECT_THAT(rig_.AnswerTo(plan)->status, refused);
  // But not to who uses the model: it may have lost its plan, or change it.
  EXPECT_OK(rig_.node().tenure().Find(session_, "m"));
  const PlanGrant before =
      rig_.PlanOf(rig_.SetPlan(session_, model, Upto(9), 2));
  ASSERT_OK(rig_.EndPlan(session_, before.id));
  rig_.FreePlan(before.id);
  rig_.PlanOf(rig_.SetPlan(session_, model, Upto(9), 3));
}

// --- Holds ------------------------------------------------------------------

class NodePlanHolds : public ::testing::Test {
 protected:
  PlanGrant SetPlan() {
    return rig_.PlanOf(rig_.SetPlan(session_, model_, Upto(6), 2));
  }
  std::map<GroupIndex, ImageRanges> Holds(PlanId plan) const {
    return rig_.plans().at(plan).holds;
  }

  NodeRig rig_{{.host_pages = 4, .device_pages = {4}}};
  SessionId session_ = rig_.Open();
  ModelId model_ = rig_.AddModel(session_, "m", {1, 1, 1, 1, 1, 1});
};

TEST_F(NodePlanHolds, AllArriveAndNoneTwice) {
  const PlanGrant plan = SetPlan();
  rig_.Hold(plan.id, {0, 1, 2});
  rig_.Hold(plan.id, {1, 2, 3});
  EXPECT_THAT(rig_.Moving<FilesToHost>(), SizeIs(4));
  rig_.FinishAll();
  EXPECT_THAT(Holds(plan.id), SizeIs(4));
  rig_.Hold(plan.id, {0, 1, 2, 3});
  EXPECT_THAT(rig_.Moving(), IsEmpty());
  EXPECT_EQ(rig_.node().tenure().held_bytes(), 4 * kPage);
  EXPECT_THAT(rig_.node().tenure().plans().Find(plan.id)->held, SizeIs(4));
}

TEST_F(NodePlanHolds, ACopyThatIsHeldStaysUntilItIsLetGo) {
  const PlanGrant plan = SetPlan();
  rig_.Hold(plan.id, {0, 1, 2, 3});
  rig_.FinishAll();
  EXPECT_EQ(rig_.Evict("m", OnHost()).groups, 0u);
  rig_.Hold(plan.id, {4});
  EXPECT_THAT(rig_.Moving(), IsEmpty());
  rig_.node().PlanUsed(plan.id, GroupIndex(2), rig_.now);
  rig_.Unhold(plan.id, 2);
  EXPECT_THAT(rig_.Moving<FilesToHost>(), SizeIs(1));
  rig_.FinishAll();
  EXPECT_FALSE(rig_.Has(Key(model_, 2), OnHost()));
  EXPECT_TRUE(Holds(plan.id).contains(GroupIndex(4)));
}

TEST_F(NodePlanHolds, AGroupThatCannotBeReadSaysSoOnce) {
  const PlanGrant plan = SetPlan();
  rig_.Hold(plan.id, {0});
  rig_.Hold(plan.id, {0});
  rig_.Finish<FilesToHost>(absl::DataLossError("damaged"));
  ASSERT_THAT(rig_.failed_holds(), SizeIs(1));
  EXPECT_TRUE(absl::IsDataLoss(rig_.failed_holds()[0].second));
  EXPECT_THAT(Holds(plan.id), IsEmpty());
  EXPECT_EQ(rig_.node().tenure().held_bytes(), 0u);
}

TEST_F(NodePlanHolds, HoldsOfAnEndedPlanVanish) {
  const PlanGrant plan = SetPlan();
  rig_.Hold(plan.id, {0, 1, 2, 3});
  rig_.Finish<FilesToHost>();
  rig_.Hold(plan.id, {4});  // Waits for space.
  ASSERT_OK(rig_.EndPlan(session_, plan.id));
  rig_.Hold(plan.id, {5});
  rig_.FinishAll();
  EXPECT_THAT(Holds(plan.id), SizeIs(1));
  rig_.FreePlan(plan.id);
  rig_.FinishAll();
  EXPECT_EQ(rig_.node().tenure().held_bytes(), 0u);
  EXPECT_EQ(rig_.TierOf(OnHost()).leased_bytes, 0u);
  EXPECT_EQ(rig_.node().NextDeadline(), absl::InfiniteFuture());
  rig_.Evict("m");
  EXPECT_EQ(rig_.TierOf(OnHost()).used_bytes, 0u);
}

TEST_F(NodePlanHolds, AnEndedPlansHoldsStayUntilItIsFreed) {
  const PlanGrant plan = SetPlan();
  rig_.Hold(plan.id, {0});
  rig_.FinishAll();
  ASSERT_OK(rig_.EndPlan(session_, plan.id));
  EXPECT_EQ(rig_.Evict("m", OnHost()).kept, 1u);
  rig_.FreePlan(plan.id);
  EXPECT_EQ(rig_.Evict("m", OnHost()).groups, 1u);
}

TEST_F(NodePlanHolds, AnUrgentHoldOvertakes) {
  const PlanGrant plan = SetPlan();
  rig_.Hold(plan.id, {0, 1, 2, 3});
  rig_.FinishAll();
  rig_.Hold(plan.id, {4, 5});
  ASSERT_THAT(rig_.Moving(), IsEmpty());
  rig_.Hold(plan.id, {5}, /*urgent=*/true);
  rig_.Unhold(plan.id, 0);
  ASSERT_THAT(rig_.Moving<FilesToHost>(), SizeIs(1));
  EXPECT_EQ(rig_.TransferOf(rig_.Moving()[0]).key, Key(model_, 5));
  EXPECT_TRUE(rig_.TransferOf(rig_.Moving()[0]).urgent);
}

// Others publish, and read what they read: what a plan may hold is no promise.
TEST_F(NodePlanHolds, APlanMakesRoomForWhatItWantsNow) {
  const PlanGrant plan = SetPlan();
  rig_.Hold(plan.id, {0, 1, 2, 3});
  rig_.FinishAll();
  rig_.Hold(plan.id, {4});
  EXPECT_THAT(rig_.crowded(), IsEmpty());
  rig_.Hold(plan.id, {4}, /*urgent=*/true);
  EXPECT_THAT(rig_.crowded(), ElementsAre(Pair(plan.id, 0u)));
}

TEST(NodePlanHoldsOfMany, WhoHoldsMostMakesRoomForAPlanThatHoldsNothing) {
  NodeRig rig({.host_pages = 4, .device_pages = {6}});
  const SessionId session = rig.Open();
  const ModelId model = rig.AddModel(session, "m", {1, 1, 1, 1, 1, 1});
  const auto set_plan = [&] {
    return rig.PlanOf(rig.SetPlan(session, model, Upto(6), 2));
  };
  const PlanGrant small = set_plan();
  const PlanGrant large = set_plan();
  const PlanGrant none = set_plan();
  rig.Hold(small.id, {0});
  rig.Hold(large.id, {1, 2, 3});
  rig.FinishAll();
  rig.Hold(none.id, {4}, /*urgent=*/true);
  EXPECT_THAT(rig.crowded(), ElementsAre(Pair(large.id, kPage)));
  rig.Unhold(large.id, 3);
  EXPECT_THAT(rig.Moving<FilesToHost>(), SizeIs(1));
}

TEST_F(NodePlanHolds, AnUrgentHoldHurriesWhatIsOnItsWay) {
  const PlanGrant plan = SetPlan();
  rig_.Hold(plan.id, {0});
  ASSERT_FALSE(rig_.TransferOf(rig_.Moving()[0]).urgent);
  rig_.Hold(plan.id, {0}, /*urgent=*/true);
  ASSERT_FALSE(rig_.hurried().empty());
  EXPECT_EQ(rig_.hurried()[0], rig_.Moving()[0]);
}

TEST_F(NodePlanHolds, TwoPlansHoldOneCopyTogether) {
  const PlanGrant a = SetPlan();
  const SessionId other = rig_.Open();
  const PlanGrant b = rig_.PlanOf(rig_.SetPlan(other, model_, Upto(6), 2));
  rig_.Hold(a.id, {0});
  rig_.Hold(b.id, {0});
  EXPECT_THAT(rig_.Moving<FilesToHost>(), SizeIs(1));
  rig_.FinishAll();
  EXPECT_EQ(Holds(a.id), Holds(b.id));
  EXPECT_EQ(rig_.node().tenure().held_bytes(), kPage);
  rig_.Unhold(a.id, 0);
  EXPECT_EQ(rig_.Evict("m", OnHost()).kept, 1u);
  rig_.Unhold(b.id, 0);
  EXPECT_EQ(rig_.Evict("m", OnHost()).groups, 1u);
}

// Groups of which each is read, used and let go in turn: what is read in
// `passes` passes.
uint64_t CyclicReads(bool tells, uint32_t groups, uint64_t room, int passes) {
  NodeRig rig({.host_pages = room, .device_pages = {4}});
  const SessionId session = rig.Open();
  const ModelId model =
      rig.AddModel(session, "m", std::vector<uint64_t>(groups, 1));
  const PlanGrant plan =
      rig.PlanOf(rig.SetPlan(session, model, Upto(groups), 1));
  EXPECT_THAT(Residents(plan), IsEmpty());
  if (!tells) {
    EXPECT_OK(rig.SetOrder(session, model, {}));
  }
  uint32_t reads = 0;
  rig.Hold(plan.id, {0, 1});
  for (uint32_t i = 0; i < groups * static_cast<uint32_t>(passes); ++i) {
    reads += static_cast<uint32_t>(rig.Moving<FilesToHost>().size());
    rig.FinishAll();
    rig.now += absl::Milliseconds(1);
    Effects none;
    rig.node().PlanUsed(plan.id, GroupIndex(i % groups), rig.now);
    rig.Unhold(plan.id, i % groups);
    rig.Hold(plan.id, {(i + 2) % groups});
  }
  return reads;
}

TEST(NodePlanOrder, TheHostEvictsTheFarthestNextUse) {
  const uint64_t told = CyclicReads(true, 10, 7, 6);
  const uint64_t lru = CyclicReads(false, 10, 7, 6);
  EXPECT_GE(lru, 58u);  // Each use of each pass.
  EXPECT_LT(told, lru * 7 / 10);
}

}  // namespace hoistd::node_plan_test
