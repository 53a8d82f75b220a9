// Device memory that is given back to other programs.
#include <numeric>
#include <vector>

#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "tests/support/node_rig.h"
#include "tests/support/status_matchers.h"

namespace hoistd::node_headroom_test {

using ::testing::HasSubstr;
using ::testing::IsEmpty;
using testing::IsOk;
using testing::kPage;
using testing::NodeRig;
using testing::NodeRigOptions;
using ::testing::SizeIs;
using testing::StatusIs;

GroupKey Key(ModelId model, uint32_t group) {
  return {model, GroupIndex(group)};
}

// A device of 8 pages in slabs of one.
class NodeHeadroom : public ::testing::Test {
 protected:
  explicit NodeHeadroom(NodeRigOptions options = {.host_pages = 64,
                                                  .device_pages = {8},
                                                  .slab_pages = 1})
      : rig_(options) {}

  uint64_t Pages() const {
    return rig_.TierOf(kDevice).allocated_bytes / kPage;
  }
  ModelId Model(uint32_t groups) {
    return rig_.AddModel(session_, "m" + std::to_string(groups),
                         std::vector<uint64_t>(groups, 1));
  }
  SetPlanArgs Args(ModelId model, uint32_t groups, uint64_t budget = 0) const {
    std::vector<uint32_t> order(groups);
    std::iota(order.begin(), order.end(), 0u);
    SetPlanArgs args = rig_.PlanArgs(model, order, budget, absl::Seconds(10));
    args.gives_way = true;
    return args;
  }
  void GiveWay(PlanId plan) {
    ASSERT_THAT(rig_.EndPlan(session_, plan), IsOk());
    rig_.FreePlan(plan);
  }

  static inline const TierAt kDevice = NodeRig::FirstDevice();
  NodeRig rig_;
  SessionId session_ = rig_.Open();
};

TEST_F(NodeHeadroom, EmptySlabsGoAndThenTheCheapestCopies) {
  const ModelId model = Model(6);
  std::vector<LeaseId> leases;
  for (uint32_t g = 0; g < 6; ++g) {
    leases.push_back(rig_.StageNow(session_, Key(model, g)));
    rig_.Advance(absl::Seconds(1));
  }
  ASSERT_EQ(Pages(), 6u);
  for (uint32_t g = 2; g < 6; ++g) {
    EXPECT_THAT(rig_.Release(session_, leases[g]), IsOk());
  }
  rig_.Resize(kDevice, 4);
  EXPECT_EQ(Pages(), 4u);
  for (uint32_t g = 0; g < 4; ++g) {
    EXPECT_TRUE(rig_.Has(Key(model, g), kDevice)) << g;
  }
  EXPECT_EQ(rig_.counters().device_evictions_for_headroom, 2u);
  EXPECT_EQ(rig_.counters().device_evictions, 0u);
  EXPECT_EQ(rig_.TierOf(kDevice).capacity_bytes, 4 * kPage);
}

TEST_F(NodeHeadroom, LeasedCopiesStayAndGoOnceTheyAreReleased) {
  const ModelId model = Model(4);
  std::vector<LeaseId> leases;
  for (uint32_t g = 0; g < 4; ++g) {
    leases.push_back(rig_.StageNow(session_, Key(model, g)));
  }
  rig_.Resize(kDevice, 1);
  EXPECT_EQ(Pages(), 4u);
  for (const LeaseId lease : leases) {
    EXPECT_THAT(rig_.Release(session_, lease), IsOk());
  }
  EXPECT_EQ(Pages(), 1u);
}

TEST_F(NodeHeadroom, WhoNeedsSpaceWaitsForIt) {
  const ModelId model = Model(4);
  rig_.Resize(kDevice, 2);
  rig_.StageNow(session_, Key(model, 0));
  rig_.StageNow(session_, Key(model, 1));
  const RequestId third = rig_.Stage(session_, Key(model, 2));
  rig_.FinishAll();
  EXPECT_TRUE(rig_.waiting(third));
  EXPECT_EQ(Pages(), 2u);
  rig_.Resize(kDevice, 3);
  rig_.FinishAll();
  EXPECT_TRUE(rig_.Has(Key(model, 2), kDevice));
  EXPECT_EQ(Pages(), 3u);
}

TEST_F(NodeHeadroom, APlanThatGivesWayIsAskedAndComesBackWithLess) {
  const ModelId model = Model(6);
  const PlanGrant whole = rig_.PlanOf(rig_.SetPlan(session_, Args(model, 6)));
  EXPECT_EQ(whole.streamed_bytes, 0u);
  std::vector<LeaseId> leases;
  for (uint32_t g = 0; g < 6; ++g) {
    leases.push_back(rig_.StageNow(session_, Key(model, g)));
  }
  rig_.Resize(kDevice, 3);
  const std::vector<hoistd::GiveWay> asks = rig_.TakeGiveWay();
  ASSERT_THAT(asks, SizeIs(1));
  EXPECT_EQ(asks[0].plan, whole.id);
  EXPECT_EQ(asks[0].idle, absl::ZeroDuration());
  rig_.Advance(absl::Seconds(1));
  EXPECT_THAT(rig_.TakeGiveWay(), IsEmpty()) << "it was asked";
  for (const LeaseId lease : leases) {
    EXPECT_THAT(rig_.Release(session_, lease), IsOk());
  }
  GiveWay(whole.id);
  EXPECT_EQ(Pages(), 3u);
  EXPECT_EQ(rig_.counters().lent_bytes_for_headroom, 6 * kPage);
  const PlanGrant part = rig_.PlanOf(rig_.SetPlan(session_, Args(model, 6)));
  EXPECT_EQ(part.budget_bytes, 3 * kPage);
  EXPECT_GT(part.streamed_bytes, 0u);
  // Once others give the memory back, it is set anew.
  rig_.Resize(kDevice, 8);
  ASSERT_THAT(rig_.TakeGiveWay(), SizeIs(1));
  GiveWay(part.id);
  EXPECT_EQ(rig_.PlanOf(rig_.SetPlan(session_, Args(model, 6))).streamed_bytes,
            0u);
}

TEST_F(NodeHeadroom, APlanComesBackWithLessWhileHoistdDrains) {
  const ModelId model = Model(6);
  const PlanGrant whole = rig_.PlanOf(rig_.SetPlan(session_, Args(model, 6)));
  for (uint32_t g = 0; g < 6; ++g) {
    const LeaseId lease = rig_.StageNow(session_, Key(model, g));
    EXPECT_THAT(rig_.Release(session_, lease), IsOk());
  }
  rig_.Drain(true);
  rig_.Resize(kDevice, 3);
  ASSERT_THAT(rig_.TakeGiveWay(), SizeIs(1));
  GiveWay(whole.id);
  EXPECT_EQ(Pages(), 3u);
  const PlanGrant part = rig_.PlanOf(rig_.SetPlan(session_, Args(model, 6)));
  EXPECT_EQ(part.budget_bytes, 3 * kPage);
}

TEST_F(NodeHeadroom, APlanThatOthersLeaveNoRoomIsRefusedAndSaysSo) {
  const ModelId model = Model(6);
  rig_.Resize(kDevice, 0);
  const RequestId refused = rig_.SetPlan(session_, Args(model, 6));
  ASSERT_NE(rig_.AnswerTo(refused), nullptr);
  EXPECT_THAT(rig_.AnswerTo(refused)->status,
              StatusIs(absl::StatusCode::kResourceExhausted,
                       HasSubstr("other programs have 32.0 KiB")));
  rig_.Resize(kDevice, 8);
  EXPECT_EQ(rig_.PlanOf(rig_.SetPlan(session_, Args(model, 6))).streamed_bytes,
            0u);
}

TEST_F(NodeHeadroom, OnlyAsManyPlansAreAskedAsAreNeeded) {
  const ModelId first = Model(3), second = Model(4);
  const PlanGrant a = rig_.PlanOf(rig_.SetPlan(session_, Args(first, 3)));
  rig_.PlanOf(rig_.SetPlan(session_, Args(second, 4)));
  for (uint32_t g = 0; g < 3; ++g) rig_.StageNow(session_, Key(first, g));
  for (uint32_t g = 0; g < 4; ++g) rig_.StageNow(session_, Key(second, g));
  rig_.Resize(kDevice, 5);
  const std::vector<hoistd::GiveWay> asks = rig_.TakeGiveWay();
  ASSERT_THAT(asks, SizeIs(1));
  EXPECT_EQ(asks[0].plan, a.id);
  rig_.Resize(kDevice, 3);
  EXPECT_THAT(rig_.TakeGiveWay(), SizeIs(1)) << "the other";
}

TEST_F(NodeHeadroom, APlanWithABudgetOfItsOwnStays) {
  const ModelId model = Model(4);
  const PlanGrant kept = rig_.PlanOf(rig_.SetPlan(session_, Args(model, 4, 4)));
  for (uint32_t g = 0; g < 4; ++g) rig_.StageNow(session_, Key(model, g));
  rig_.Resize(kDevice, 2);
  EXPECT_THAT(rig_.TakeGiveWay(), IsEmpty());
  EXPECT_EQ(Pages(), 4u);
  EXPECT_NE(rig_.node().tenure().FindPlan(kept.id), nullptr);
}

TEST_F(NodeHeadroom, PromisedSlabsOfAPlanStay) {
  const ModelId model = Model(4);
  rig_.PlanOf(rig_.SetPlan(session_, Args(model, 4, 4)));
  const LeaseId lease = rig_.StageNow(session_, Key(model, 0));
  EXPECT_THAT(rig_.Release(session_, lease), IsOk());
  rig_.Resize(kDevice, 4);
  for (uint32_t g = 0; g < 4; ++g) rig_.StageNow(session_, Key(model, g));
  EXPECT_EQ(Pages(), 4u);
}

// Workers that keep idle slabs open until they are asked.
class NodeHeadroomOpen : public NodeHeadroom {
 protected:
  NodeHeadroomOpen()
      : NodeHeadroom({.host_pages = 64,
                      .device_pages = {8},
                      .slab_pages = 1,
                      .closing = NodeRigOptions::Closing::kByHand}) {}
};

TEST_F(NodeHeadroomOpen, IdleWorkersAreAskedToCloseTheirSlabs) {
  const ModelId model = Model(4);
  for (uint32_t g = 0; g < 4; ++g) {
    const LeaseId lease = rig_.StageNow(session_, Key(model, g));
    EXPECT_THAT(rig_.Release(session_, lease), IsOk());
  }
  ASSERT_EQ(Pages(), 4u);
  rig_.Resize(kDevice, 1);
  EXPECT_EQ(Pages(), 4u) << "a worker has them open";
  ASSERT_THAT(rig_.asks(), SizeIs(1));
  rig_.AnswerAsk();
  EXPECT_EQ(Pages(), 1u);
}

TEST_F(NodeHeadroom, NothingGoesBeyondTheFirstCapacity) {
  rig_.Resize(kDevice, 100);
  EXPECT_EQ(rig_.TierOf(kDevice).capacity_bytes, 8 * kPage);
  const NodeBooks books = rig_.node().books();
  EXPECT_EQ(books.space.device(kDevice.device).bounds().withheld(), 0u);
}

TEST_F(NodeHeadroom, TheBooksHaveWhatIsWithheldAndTheHeadroom) {
  rig_.Resize(kDevice, 3, /*headroom_pages=*/2);
  const NodeBooks books = rig_.node().books();
  const PoolBounds& bounds = books.space.device(kDevice.device).bounds();
  EXPECT_EQ(bounds.withheld(), 5 * kPage);
  EXPECT_EQ(bounds.headroom(), 2 * kPage);
  rig_.Resize(kDevice, 8, /*headroom_pages=*/1);
  EXPECT_EQ(bounds.withheld(), 0u);
  EXPECT_EQ(bounds.headroom(), kPage);
}

// A session's spare.
class NodeSpare : public NodeHeadroom {
 protected:
  uint64_t Capacity() const {
    return rig_.TierOf(kDevice).capacity_bytes / kPage;
  }
  // Copies of `groups` pages on the device, of which the first are leased.
  std::vector<LeaseId> Fill(uint32_t groups, uint32_t leased) {
    const ModelId model = Model(groups);
    std::vector<LeaseId> leases;
    for (uint32_t g = 0; g < groups; ++g) {
      leases.push_back(rig_.StageNow(session_, Key(model, g)));
    }
    while (leases.size() > leased) {
      EXPECT_THAT(rig_.Release(session_, leases.back()), IsOk());
      leases.pop_back();
    }
    return leases;
  }
  absl::Status StatusOf(RequestId request) const {
    const Answer* answer = rig_.AnswerTo(request);
    return answer == nullptr ? absl::UnknownError("it waits") : answer->status;
  }
  const SessionId other_ = rig_.Open();
};

TEST_F(NodeSpare, IdleCopiesGoAtOnceAndThePoolStaysSmallUntilItEnds) {
  Fill(6, 0);
  EXPECT_THAT(StatusOf(rig_.Spare(other_, 2)), IsOk());
  EXPECT_EQ(Pages(), 4u);
  EXPECT_EQ(Capacity(), 4u) << "the two pages of nobody are no spare";
  EXPECT_EQ(rig_.node().books().space.device(kDevice.device).bounds().spared(),
            4 * kPage);
  EXPECT_THAT(StatusOf(rig_.Spare(other_, 0)), IsOk());
  EXPECT_EQ(Capacity(), 8u);
}

TEST_F(NodeSpare, ItWaitsForLeasesAndNamesWhatItCouldLeave) {
  const std::vector<LeaseId> leases = Fill(6, 5);
  const RequestId waits = rig_.Spare(other_, 2);
  EXPECT_TRUE(rig_.waiting(waits));
  EXPECT_THAT(StatusOf(rig_.Spare(other_, 1)),
              StatusIs(absl::StatusCode::kFailedPrecondition));
  rig_.Advance(absl::Seconds(11));
  EXPECT_THAT(StatusOf(waits),
              StatusIs(absl::StatusCode::kResourceExhausted,
                       HasSubstr("could leave 4.0 KiB of 8.0 KiB")));
  EXPECT_EQ(Capacity(), 8u);
  const RequestId again = rig_.Spare(other_, 2);
  for (uint32_t g = 3; g < 5; ++g) {
    EXPECT_TRUE(rig_.waiting(again));
    EXPECT_THAT(rig_.Release(session_, leases[g]), IsOk());
  }
  EXPECT_THAT(StatusOf(again), IsOk());
}

TEST_F(NodeSpare, APlanIsAskedAndComesBackWithLess) {
  const ModelId model = Model(6);
  const PlanGrant whole = rig_.PlanOf(rig_.SetPlan(session_, Args(model, 6)));
  for (uint32_t g = 0; g < 6; ++g) {
    const LeaseId lease = rig_.StageNow(session_, Key(model, g));
    EXPECT_THAT(rig_.Release(session_, lease), IsOk());
  }
  const RequestId waits = rig_.Spare(session_, 3);
  ASSERT_THAT(rig_.TakeGiveWay(), SizeIs(1));
  EXPECT_TRUE(rig_.waiting(waits));
  GiveWay(whole.id);
  EXPECT_THAT(StatusOf(waits), IsOk());
  const PlanGrant part = rig_.PlanOf(rig_.SetPlan(session_, Args(model, 6)));
  EXPECT_EQ(part.budget_bytes, 3 * kPage);
  SetPlanArgs more = Args(Model(7), 7, 7 * kPage);
  more.deadline = absl::ZeroDuration();
  EXPECT_THAT(
      StatusOf(rig_.SetPlan(session_, more)),
      StatusIs(absl::StatusCode::kResourceExhausted,
               HasSubstr("20.0 KiB are left to workers that lack memory")));
}

TEST_F(NodeSpare, MoreThanThePoolHasIsRefused) {
  Fill(3, 0);
  EXPECT_THAT(StatusOf(rig_.Spare(other_, 4)),
              StatusIs(absl::StatusCode::kResourceExhausted,
                       HasSubstr("hoistd has 12.0 KiB")));
  EXPECT_EQ(Pages(), 3u);
}

TEST_F(NodeSpare, TwoSessionsHaveBothAndOnesEndLeavesTheOthers) {
  Fill(8, 0);
  EXPECT_THAT(StatusOf(rig_.Spare(session_, 2)), IsOk());
  EXPECT_THAT(StatusOf(rig_.Spare(other_, 3)), IsOk());
  EXPECT_EQ(Capacity(), 3u);
  EXPECT_THAT(StatusOf(rig_.Spare(other_, 0)), IsOk());
  EXPECT_EQ(Capacity(), 6u);
  Fill(6, 0);
  EXPECT_THAT(StatusOf(rig_.Spare(other_, 3)), IsOk());
  EXPECT_EQ(Capacity(), 3u);
  rig_.Close(session_);
  EXPECT_EQ(Capacity(), 5u);
  rig_.Resize(kDevice, 4);
  EXPECT_EQ(Capacity(), 4u);
  rig_.Resize(kDevice, 8);
  EXPECT_EQ(Capacity(), 5u);
  rig_.Close(other_);
  EXPECT_EQ(Capacity(), 8u);
}

TEST_F(NodeSpare, ItIsLeftWhileHoistdDrains) {
  Fill(6, 0);
  rig_.Drain(true);
  EXPECT_THAT(StatusOf(rig_.Spare(other_, 2)), IsOk());
  EXPECT_EQ(Pages(), 4u);
}

}  // namespace hoistd::node_headroom_test
