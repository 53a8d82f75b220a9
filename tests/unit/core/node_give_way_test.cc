// Plans that give way to plans that need their memory.
#include <numeric>
#include <utility>
#include <vector>

#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "tests/support/node_rig.h"
#include "tests/support/status_matchers.h"

namespace hoistd::node_give_way_test {

using ::testing::HasSubstr;
using ::testing::IsEmpty;
using testing::IsOk;
using testing::kPage;
using testing::NodeRig;
using ::testing::SizeIs;
using testing::StatusIs;

constexpr auto kExhausted = absl::StatusCode::kResourceExhausted;

// A device of 8 pages, and models of 6 groups of a page.
class NodeGiveWay : public ::testing::Test {
 protected:
  SetPlanArgs Args(ModelId model, absl::Duration deadline = absl::Seconds(10),
                   uint32_t groups = 6) const {
    std::vector<uint32_t> order(groups);
    std::iota(order.begin(), order.end(), 0u);
    SetPlanArgs args = rig_.PlanArgs(model, order, 0, deadline);
    args.gives_way = true;
    return args;
  }
  // Of a model of the first one's, as large as the device.
  SetPlanArgs OfAllPages() {
    return Args(rig_.AddModel(first_, "large", std::vector<uint64_t>(8, 1)),
                absl::Seconds(10), 8);
  }
  ModelId Model(const std::string& name) {
    return rig_.AddModel(rig_.Open(), name, std::vector<uint64_t>(6, 1));
  }
  bool IsSet(RequestId request) const {
    const Answer* answer = rig_.AnswerTo(request);
    return answer != nullptr && answer->status.ok();
  }
  // As a session that finds its plan idle.
  void GiveWay(SessionId session, PlanId plan) {
    ASSERT_THAT(rig_.EndPlan(session, plan), IsOk());
    rig_.FreePlan(plan);
  }

  // Those that are shown.
  std::vector<std::pair<LoanKey, Loan>> Loans() {
    std::vector<std::pair<LoanKey, Loan>> loans;
    for (const auto& one : rig_.node().tenure().reclaim().loans().all()) {
      if (one.second.is_shown()) loans.push_back(one);
    }
    return loans;
  }

  NodeRig rig_{{.host_pages = 64, .device_pages = {8}}};
  ModelId a_ = Model("a"), b_ = Model("b");
  SessionId first_ = rig_.Open(), second_ = rig_.Open();
};

TEST_F(NodeGiveWay, AnIdlePlanReturnsItsMemoryToOneThatFitsInPart) {
  const PlanGrant whole = rig_.PlanOf(rig_.SetPlan(first_, Args(a_)));
  EXPECT_EQ(whole.streamed_bytes, 0u);
  const RequestId request = rig_.SetPlan(second_, Args(b_));
  const std::vector<hoistd::GiveWay> asks = rig_.TakeGiveWay();
  ASSERT_THAT(asks, SizeIs(1));
  EXPECT_EQ(asks[0].session, first_);
  EXPECT_EQ(asks[0].plan, whole.id);
  EXPECT_GT(asks[0].idle, absl::ZeroDuration());
  EXPECT_EQ(rig_.AnswerTo(request), nullptr);
  GiveWay(first_, whole.id);
  ASSERT_TRUE(IsSet(request));
  EXPECT_EQ(rig_.PlanOf(request).streamed_bytes, 0u);
}

TEST_F(NodeGiveWay, ABusyPlanKeepsItsMemoryAndTheOtherHasTheRest) {
  const PlanGrant whole = rig_.PlanOf(rig_.SetPlan(first_, Args(a_)));
  const RequestId request = rig_.SetPlan(second_, Args(b_));
  rig_.Advance(Reclaim::kWish);
  ASSERT_TRUE(IsSet(request));
  EXPECT_EQ(rig_.PlanOf(request).budget_bytes, 2 * kPage);
  EXPECT_NE(rig_.node().tenure().FindPlan(whole.id), nullptr);
}

TEST_F(NodeGiveWay, APlanGrantedInPartIsSetAnewOnceThereIsRoom) {
  const PlanGrant whole = rig_.PlanOf(rig_.SetPlan(first_, Args(a_)));
  const RequestId request = rig_.SetPlan(second_, Args(b_));
  rig_.Advance(Reclaim::kWish);
  const PlanGrant part = rig_.PlanOf(request);
  ASSERT_GT(part.streamed_bytes, 0u);
  rig_.TakeGiveWay();
  rig_.Advance(absl::Seconds(1));
  EXPECT_THAT(rig_.TakeGiveWay(), IsEmpty()) << "nothing is free for it";
  GiveWay(first_, whole.id);
  const std::vector<hoistd::GiveWay> asks = rig_.TakeGiveWay();
  ASSERT_THAT(asks, SizeIs(1));
  EXPECT_EQ(asks[0].plan, part.id);
  EXPECT_EQ(asks[0].idle, absl::ZeroDuration());
  rig_.Advance(absl::Seconds(1));
  EXPECT_THAT(rig_.TakeGiveWay(), IsEmpty()) << "it was asked";
  GiveWay(second_, part.id);
  EXPECT_EQ(rig_.counters().lent_bytes_to_grow,
            part.ring_bytes + part.resident_bytes);
  EXPECT_EQ(rig_.PlanOf(rig_.SetPlan(second_, Args(b_))).streamed_bytes, 0u);
  rig_.Advance(absl::Seconds(1));
  EXPECT_THAT(rig_.TakeGiveWay(), IsEmpty());
}

TEST_F(NodeGiveWay, APlanWithABudgetOfItsOwnGivesWayToAdminsAlone) {
  SetPlanArgs fixed = Args(a_);
  fixed.budget_bytes = 6 * kPage;
  const PlanGrant kept = rig_.PlanOf(rig_.SetPlan(first_, fixed));
  rig_.SetPlan(second_, Args(b_));
  EXPECT_THAT(rig_.TakeGiveWay(), IsEmpty());
  Effects effects;
  const PlanTotals asked = rig_.node().tenure().reclaim().Ask(
      first_, absl::Seconds(3), rig_.now, effects);
  EXPECT_EQ(asked.asked, 1u);
  EXPECT_EQ(asked.asked_bytes, 6 * kPage);
  EXPECT_EQ(asked.kept, 0u);
  ASSERT_THAT(effects.give_way, SizeIs(1));
  EXPECT_EQ(effects.give_way[0].plan, kept.id);
  EXPECT_EQ(effects.give_way[0].idle, absl::Seconds(3));
}

TEST_F(NodeGiveWay, APlanWhoseClientDoesNotListenIsCountedAsKept) {
  SetPlanArgs deaf = Args(a_);
  deaf.gives_way = false;
  rig_.SetPlan(first_, deaf);
  Effects effects;
  const PlanTotals asked = rig_.node().tenure().reclaim().Ask(
      first_, absl::ZeroDuration(), rig_.now, effects);
  EXPECT_EQ(asked.asked, 0u);
  EXPECT_EQ(asked.kept, 1u);
  EXPECT_EQ(asked.kept_bytes, 6 * kPage);
  EXPECT_THAT(effects.give_way, IsEmpty());
}

TEST_F(NodeGiveWay, TwoThatAreDecidedAtOnceDoNotGetTheSameMemory) {
  rig_.SetPlan(first_, Args(a_));
  const RequestId second = rig_.SetPlan(second_, Args(b_));
  const RequestId third = rig_.SetPlan(rig_.Open(), Args(Model("c")));
  rig_.Advance(Reclaim::kWish);
  ASSERT_TRUE(IsSet(second));
  EXPECT_EQ(rig_.PlanOf(second).budget_bytes, 2 * kPage);
  EXPECT_EQ(rig_.AnswerTo(third), nullptr) << "nothing is free for it";
}

TEST_F(NodeGiveWay, OneThatFitsNotAtAllHasAnEqualShareOfABusyOnes) {
  SetPlanArgs all = Args(a_);
  const ModelId large =
      rig_.AddModel(first_, "large", std::vector<uint64_t>(8, 1));
  all.model = large;
  all.order.clear();
  for (uint32_t g = 0; g < 8; ++g) all.order.emplace_back(g);
  const PlanGrant whole = rig_.PlanOf(rig_.SetPlan(first_, all));
  EXPECT_EQ(whole.resident_bytes, 8 * kPage);
  const RequestId request = rig_.SetPlan(second_, Args(b_));
  EXPECT_THAT(rig_.TakeGiveWay(), SizeIs(1));
  rig_.Advance(Reclaim::kWish);
  const std::vector<hoistd::GiveWay> asks = rig_.TakeGiveWay();
  ASSERT_THAT(asks, SizeIs(1));
  EXPECT_EQ(asks[0].idle, absl::ZeroDuration());
  EXPECT_EQ(rig_.AnswerTo(request), nullptr);
  GiveWay(first_, whole.id);
  ASSERT_TRUE(IsSet(request));
  EXPECT_EQ(rig_.PlanOf(request).budget_bytes, 4 * kPage);
  // The first one comes back to the rest, and nobody is asked.
  const RequestId again = rig_.SetPlan(first_, all);
  rig_.Advance(Reclaim::kWish);
  EXPECT_EQ(rig_.PlanOf(again).budget_bytes, 4 * kPage);
}

TEST_F(NodeGiveWay, OneWithAnEqualShareLendsToo) {
  const SetPlanArgs all = OfAllPages();
  const PlanGrant whole = rig_.PlanOf(rig_.SetPlan(first_, all));
  const RequestId request = rig_.SetPlan(second_, Args(b_));
  rig_.Advance(Reclaim::kWish);
  rig_.TakeGiveWay();
  GiveWay(first_, whole.id);
  const PlanGrant share = rig_.PlanOf(request);
  ASSERT_EQ(share.budget_bytes, 4 * kPage);
  rig_.Advance(absl::Seconds(1));
  EXPECT_THAT(rig_.TakeGiveWay(), IsEmpty()) << "the rest is the first one's";
  const ModelId six = rig_.AddModel(first_, "six", {6});
  const RequestId stage =
      rig_.Stage(rig_.Open(), {six, GroupIndex(0)}, absl::Seconds(10));
  const std::vector<hoistd::GiveWay> asks = rig_.TakeGiveWay();
  ASSERT_THAT(asks, SizeIs(1));
  EXPECT_EQ(asks[0].plan, share.id);
  GiveWay(second_, share.id);
  rig_.FinishAll();
  EXPECT_TRUE(IsSet(stage));
}

TEST_F(NodeGiveWay, IsRefusedWhereNoneGivesWayByTheDeadline) {
  SetPlanArgs firm = Args(a_);
  firm.gives_way = false;
  firm.budget_bytes = 6 * kPage;
  ASSERT_TRUE(IsSet(rig_.SetPlan(first_, firm)));
  SetPlanArgs args = Args(b_, absl::Seconds(3));
  args.budget_bytes = 3 * kPage;
  const RequestId request = rig_.SetPlan(second_, args);
  EXPECT_THAT(rig_.TakeGiveWay(), IsEmpty());
  ASSERT_NE(rig_.AnswerTo(request), nullptr);
  EXPECT_THAT(rig_.AnswerTo(request)->status,
              StatusIs(kExhausted, HasSubstr("would be enough")));
}

TEST_F(NodeGiveWay, ABudgetIsARefusalUntilItIsGivenWayTo) {
  const PlanGrant whole = rig_.PlanOf(rig_.SetPlan(first_, Args(a_)));
  SetPlanArgs args = Args(b_, absl::Seconds(3));
  args.budget_bytes = 3 * kPage;
  const RequestId late = rig_.SetPlan(second_, args);
  rig_.Advance(absl::Seconds(3));
  ASSERT_NE(rig_.AnswerTo(late), nullptr);
  EXPECT_THAT(rig_.AnswerTo(late)->status, StatusIs(kExhausted));
  const RequestId request = rig_.SetPlan(second_, args);
  EXPECT_EQ(rig_.AnswerTo(request), nullptr);
  GiveWay(first_, whole.id);
  EXPECT_TRUE(IsSet(request));
}

TEST_F(NodeGiveWay, OneThatWillNotWaitAsksNobody) {
  ASSERT_TRUE(IsSet(rig_.SetPlan(first_, Args(a_))));
  const RequestId request =
      rig_.SetPlan(second_, Args(b_, absl::ZeroDuration()));
  EXPECT_THAT(rig_.TakeGiveWay(), IsEmpty());
  EXPECT_EQ(rig_.PlanOf(request).budget_bytes, 2 * kPage);
}

TEST_F(NodeGiveWay, ASessionsEndEndsItsWish) {
  const PlanGrant whole = rig_.PlanOf(rig_.SetPlan(first_, Args(a_)));
  rig_.SetPlan(second_, Args(b_));
  rig_.Close(second_);
  GiveWay(first_, whole.id);
  EXPECT_EQ(rig_.node().tenure().plans().standing().size(), 0u);
}

TEST_F(NodeGiveWay, OneBoundByItsSessionsBudgetAsksItsOwnPlansAlone) {
  ASSERT_TRUE(IsSet(rig_.SetPlan(first_, Args(a_))));
  // Its own bound refuses it, and no other session could change that.
  const SessionId bound = rig_.Open(1, /*budget_pages=*/1);
  const RequestId request = rig_.SetPlan(bound, Args(b_));
  EXPECT_THAT(rig_.TakeGiveWay(), IsEmpty());
  ASSERT_NE(rig_.AnswerTo(request), nullptr);
}

TEST_F(NodeGiveWay, ALoanIsAskedForThenLentUntilItsLenderHasAPlanAgain) {
  const PlanGrant whole = rig_.PlanOf(rig_.SetPlan(first_, Args(a_)));
  EXPECT_THAT(Loans(), IsEmpty());
  rig_.SetPlan(second_, Args(b_));
  ASSERT_THAT(Loans(), SizeIs(1));
  const auto [lender, asked] = Loans()[0];
  EXPECT_EQ(lender, (LoanKey{first_, a_, DeviceIndex(0)}));
  EXPECT_EQ(asked.why, Loan::Why::kNeed);
  EXPECT_EQ(asked.to, second_);
  EXPECT_EQ(asked.to_model, b_);
  EXPECT_EQ(asked.bytes, 6 * kPage);
  EXPECT_FALSE(asked.lent);
  EXPECT_EQ(rig_.counters().lent_bytes_to_needs, 0u);
  rig_.Advance(absl::Milliseconds(100));
  GiveWay(first_, whole.id);
  rig_.Advance(absl::Milliseconds(30));
  ASSERT_THAT(Loans(), SizeIs(1));
  EXPECT_TRUE(Loans()[0].second.lent);
  EXPECT_EQ(Loans()[0].second.since, rig_.now - absl::Milliseconds(30));
  EXPECT_EQ(rig_.counters().lent_bytes_to_needs, 6 * kPage);
  rig_.SetPlan(first_, Args(a_, absl::ZeroDuration()));
  EXPECT_THAT(Loans(), IsEmpty());
}

TEST_F(NodeGiveWay, APlanThatEndsUnaskedLendsNothing) {
  const PlanGrant whole = rig_.PlanOf(rig_.SetPlan(first_, Args(a_)));
  GiveWay(first_, whole.id);
  EXPECT_THAT(Loans(), IsEmpty());
  EXPECT_EQ(rig_.counters().lent_bytes_to_needs, 0u);
}

TEST_F(NodeGiveWay, ALoanEndsOnceItsLenderIsDoneWithTheModel) {
  const PlanGrant whole = rig_.PlanOf(rig_.SetPlan(first_, Args(a_)));
  rig_.SetPlan(second_, Args(b_));
  GiveWay(first_, whole.id);
  ASSERT_OK(rig_.SetOrder(first_, b_, {}));
  EXPECT_THAT(Loans(), SizeIs(1)) << "of another model";
  ASSERT_OK(rig_.SetOrder(first_, a_, {}));
  EXPECT_THAT(Loans(), IsEmpty());
}

TEST_F(NodeGiveWay, ALoanEndsWithItsLendersSession) {
  const PlanGrant whole = rig_.PlanOf(rig_.SetPlan(first_, Args(a_)));
  rig_.SetPlan(second_, Args(b_));
  GiveWay(first_, whole.id);
  ASSERT_THAT(Loans(), SizeIs(1));
  rig_.Close(first_);
  EXPECT_THAT(Loans(), IsEmpty());
}

TEST_F(NodeGiveWay, TheNewestAskIsTheLoansCause) {
  const PlanGrant whole = rig_.PlanOf(rig_.SetPlan(first_, Args(a_)));
  Tenure& tenure = rig_.node().tenure();
  tenure.reclaim().loans().Ask(*tenure.plans().Find(whole.id),
                               {Loan::Why::kIdle, rig_.now});
  EXPECT_THAT(Loans(), IsEmpty()) << "each is asked, and none may ever be idle";
  Effects effects;
  tenure.reclaim().Ask(first_, absl::ZeroDuration(), rig_.now, effects);
  ASSERT_THAT(Loans(), SizeIs(1));
  EXPECT_EQ(Loans()[0].second.why, Loan::Why::kAdmin);
  GiveWay(first_, whole.id);
  EXPECT_EQ(rig_.counters().lent_bytes_by_admins, 6 * kPage);
  EXPECT_EQ(rig_.counters().lent_bytes_when_idle, 0u);
}

TEST_F(NodeGiveWay, AnIdlePlansLoanIsShownOnceItIsLent) {
  const PlanGrant whole = rig_.PlanOf(rig_.SetPlan(first_, Args(a_)));
  Tenure& tenure = rig_.node().tenure();
  tenure.reclaim().loans().Ask(*tenure.plans().Find(whole.id),
                               {Loan::Why::kIdle, rig_.now});
  GiveWay(first_, whole.id);
  ASSERT_THAT(Loans(), SizeIs(1));
  EXPECT_EQ(Loans()[0].second.why, Loan::Why::kIdle);
  EXPECT_EQ(rig_.counters().lent_bytes_when_idle, 6 * kPage);
}

TEST_F(NodeGiveWay, AStageWithoutRoomAsksOnePlanAfterAnother) {
  const PlanGrant whole = rig_.PlanOf(rig_.SetPlan(first_, Args(a_)));
  const PlanGrant part =
      rig_.PlanOf(rig_.SetPlan(second_, Args(b_, absl::ZeroDuration())));
  ASSERT_EQ(part.budget_bytes, 2 * kPage);
  const ModelId large = rig_.AddModel(first_, "large", {7});
  const SessionId third = rig_.Open();
  const RequestId stage =
      rig_.Stage(third, {large, GroupIndex(0)}, absl::Seconds(10));
  std::vector<hoistd::GiveWay> asks = rig_.TakeGiveWay();
  ASSERT_THAT(asks, SizeIs(2)) << "the first one's 6 pages are not enough";
  EXPECT_EQ(asks[0].plan, whole.id);
  EXPECT_EQ(asks[1].plan, part.id);
  EXPECT_EQ(asks[0].idle, absl::ZeroDuration());
  ASSERT_THAT(Loans(), SizeIs(2));
  EXPECT_EQ(Loans()[0].second.why, Loan::Why::kNeed);
  EXPECT_EQ(Loans()[0].second.to, third);
  EXPECT_EQ(Loans()[0].second.to_model, large);
  GiveWay(first_, whole.id);
  EXPECT_EQ(rig_.AnswerTo(stage), nullptr);
  EXPECT_THAT(rig_.TakeGiveWay(), IsEmpty()) << "both were asked";
  GiveWay(second_, part.id);
  rig_.FinishAll();
  ASSERT_TRUE(IsSet(stage));
  EXPECT_EQ(rig_.counters().lent_bytes_to_needs, 8 * kPage);
}

TEST_F(NodeGiveWay, AStageThatFitsOrDoesNotWaitAsksNobody) {
  ASSERT_TRUE(IsSet(rig_.SetPlan(first_, Args(a_))));
  const ModelId small = rig_.AddModel(first_, "small", {2, 3});
  rig_.Stage(second_, {small, GroupIndex(0)}, absl::Seconds(10));
  rig_.Stage(second_, {small, GroupIndex(1)}, absl::ZeroDuration());
  EXPECT_THAT(rig_.TakeGiveWay(), IsEmpty());
}

// Its copy is there, and the lease of it would take promised memory.
TEST_F(NodeGiveWay, AStageOfAnIdleCopyInPromisedMemoryAsksAPlan) {
  const ModelId small = rig_.AddModel(second_, "small", {1});
  const GroupKey key = {small, GroupIndex(0)};
  ASSERT_THAT(rig_.Release(second_, rig_.StageNow(second_, key)), IsOk());
  const PlanGrant whole = rig_.PlanOf(rig_.SetPlan(first_, OfAllPages()));
  ASSERT_EQ(whole.resident_bytes, 8 * kPage);
  const RequestId stage = rig_.Stage(second_, key, absl::Seconds(10));
  const std::vector<hoistd::GiveWay> asks = rig_.TakeGiveWay();
  ASSERT_THAT(asks, SizeIs(1));
  EXPECT_EQ(asks[0].plan, whole.id);
  GiveWay(first_, whole.id);
  EXPECT_TRUE(IsSet(stage));
}

TEST_F(NodeGiveWay, AStageIsRefusedByItsDeadlineWhereAPlanStays) {
  const PlanGrant whole = rig_.PlanOf(rig_.SetPlan(first_, Args(a_)));
  const RequestId stage =
      rig_.Stage(second_, {b_, GroupIndex(0)}, absl::Seconds(3));
  const ModelId large = rig_.AddModel(first_, "large", {3});
  const RequestId late =
      rig_.Stage(second_, {large, GroupIndex(0)}, absl::Seconds(3));
  EXPECT_THAT(rig_.TakeGiveWay(), SizeIs(1));
  rig_.FinishAll();
  EXPECT_TRUE(IsSet(stage));
  rig_.Advance(absl::Seconds(3));
  ASSERT_NE(rig_.AnswerTo(late), nullptr);
  EXPECT_THAT(rig_.AnswerTo(late)->status, StatusIs(kExhausted));
  EXPECT_NE(rig_.node().tenure().FindPlan(whole.id), nullptr);
}

}  // namespace hoistd::node_give_way_test
