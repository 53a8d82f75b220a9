// Memory that idle workers have open goes to whoever needs it.
#include <set>
#include <vector>

#include "daemon/core/slab_book.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "tests/support/node_rig.h"
#include "tests/support/status_matchers.h"

namespace hoistd::node_slabs_test {

using ::testing::AllOf;
using ::testing::HasSubstr;
using ::testing::IsEmpty;
using testing::IsOk;
using testing::kPage;
using testing::NodeRig;
using testing::NodeRigOptions;
using ::testing::Not;
using ::testing::SizeIs;
using testing::StatusIs;

using Closing = NodeRigOptions::Closing;
constexpr auto kExhausted = absl::StatusCode::kResourceExhausted;

GroupKey Key(ModelId model, uint32_t group) {
  return {model, GroupIndex(group)};
}

NodeRigOptions Options(Closing closing, QuotaLimits each = {}) {
  NodeRigOptions options;
  options.device_pages = {8};
  options.slab_pages = 4;
  options.closing = closing;
  options.quota.each = each;
  return options;
}

// Ada's and Bob's models, each of groups of two pages; all of the device is
// Ada's, who has it open and uses nothing of it.
struct Idle {
  explicit Idle(Closing closing, QuotaLimits each = {})
      : rig(Options(closing, each)) {
    std::vector<LeaseId> leases;
    for (uint32_t g = 0; g < 4; ++g) {
      leases.push_back(rig.StageNow(ada, Key(adas, g)));
    }
    for (const LeaseId lease : leases) EXPECT_OK(rig.Release(ada, lease));
  }
  absl::Status StatusOf(RequestId request) {
    const Answer* answer = rig.AnswerTo(request);
    return answer == nullptr ? absl::InternalError("not answered")
                             : answer->status;
  }

  NodeRig rig;
  SessionId ada = rig.Open(1), bob = rig.Open(2), root = rig.Open(0);
  ModelId adas = rig.AddModel(ada, "m", {2, 2, 2, 2});
  ModelId bobs = rig.AddModel(bob, "m", {2, 2, 2, 2});
};

TEST(NodeSlabs, AnIdleWorkerClosesWhatAnotherNeeds) {
  Idle t(Closing::kByHand);
  const RequestId request = t.rig.Stage(t.bob, Key(t.bobs, 0));
  ASSERT_THAT(t.rig.asks(), SizeIs(1));
  EXPECT_EQ(t.rig.asks()[0].session, t.ada);
  EXPECT_THAT(t.rig.asks()[0].slabs, SizeIs(1));  // No more than is needed.
  EXPECT_TRUE(t.rig.waiting(request));
  EXPECT_TRUE(t.rig.Has(Key(t.adas, 3), NodeRig::FirstDevice()));
  t.rig.AnswerAsk();
  t.rig.FinishAll();
  t.rig.LeaseOf(request);
  EXPECT_TRUE(t.rig.Has(Key(t.adas, 0), NodeRig::FirstDevice()));
}

TEST(NodeSlabs, NobodyIsAskedWhileThereIsMemory) {
  NodeRig rig(Options(Closing::kByHand));
  const SessionId ada = rig.Open(1), bob = rig.Open(2);
  const ModelId adas = rig.AddModel(ada, "m", {4});
  const ModelId bobs = rig.AddModel(bob, "m", {2, 2, 2});
  ASSERT_OK(rig.Release(ada, rig.StageNow(ada, Key(adas, 0))));
  const LeaseId first = rig.StageNow(bob, Key(bobs, 0));
  rig.StageNow(bob, Key(bobs, 1));
  EXPECT_THAT(rig.asks(), IsEmpty());
  // Nor where evicting one's own does.
  ASSERT_OK(rig.Release(bob, first));
  rig.StageNow(bob, Key(bobs, 2));
  EXPECT_THAT(rig.asks(), IsEmpty());
}

TEST(NodeSlabs, APrefetchDisturbsNobody) {
  Idle t(Closing::kByHand);
  ASSERT_OK(t.rig.Prefetch(t.bob, t.bobs, {0}));
  EXPECT_THAT(t.rig.asks(), IsEmpty());
}

TEST(NodeSlabs, WhatIsLeasedIsNotAskedFor) {
  Idle t(Closing::kByHand);
  for (uint32_t g = 0; g < 4; ++g) t.rig.StageNow(t.ada, Key(t.adas, g));
  const RequestId request = t.rig.Stage(t.bob, Key(t.bobs, 0));
  EXPECT_THAT(t.rig.asks(), IsEmpty());
  t.rig.Advance(absl::Seconds(11));
  EXPECT_THAT(t.StatusOf(request), StatusIs(kExhausted));
}

TEST(NodeSlabs, ASlabThatIsGivenAgainIsNotClosedByAnOlderAnswer) {
  Idle t(Closing::kByHand);
  const RequestId request = t.rig.Stage(t.bob, Key(t.bobs, 0));
  ASSERT_THAT(t.rig.asks(), SizeIs(1));
  // The rig closed it at once, and sees to it that it is sent again.
  const LeaseId lease = t.rig.StageNow(t.ada, Key(t.adas, 3));
  t.rig.AnswerAsk();
  EXPECT_TRUE(t.rig.waiting(request));
  ASSERT_OK(t.rig.Release(t.ada, lease));
  ASSERT_THAT(t.rig.asks(), SizeIs(1));
  t.rig.AnswerAsk();
  t.rig.FinishAll();
  t.rig.LeaseOf(request);
}

TEST(NodeSlabs, WhoDoesNotAnswerKeepsItAndAnotherIsToldSo) {
  Idle t(Closing::kByHand);
  const RequestId now = t.rig.Stage(t.bob, Key(t.bobs, 0), absl::Seconds(0));
  const RequestId later = t.rig.Stage(t.bob, Key(t.bobs, 1));
  const RequestId admins = t.rig.Bring(Key(t.bobs, 2), NodeRig::FirstDevice(),
                                       /*pin=*/true);
  // To ask takes no time of one's own.
  EXPECT_TRUE(t.rig.waiting(now));
  t.rig.Advance(absl::Seconds(3));
  EXPECT_THAT(t.StatusOf(now),
              StatusIs(kExhausted,
                       AllOf(HasSubstr("held open by idle workers that do not"),
                             Not(HasSubstr("uid")))));
  EXPECT_TRUE(t.rig.waiting(later));
  t.rig.Advance(absl::Seconds(8));
  EXPECT_THAT(t.StatusOf(later),
              StatusIs(kExhausted, HasSubstr("held open by idle workers")));
  EXPECT_THAT(
      t.StatusOf(admins),
      StatusIs(kExhausted, HasSubstr("idle workers of uid 1 (pid 0) that")));
  EXPECT_EQ(std::count_if(t.rig.events().begin(), t.rig.events().end(),
                          [&](const NodeEvent& event) {
                            return event.kind == EventKind::kSlabsHeldOpen &&
                                   event.session == t.ada && event.bytes > 0;
                          }),
            1);
}

// Of three users, each of whom has a third of the device open and is stopped.
TEST(NodeSlabs, SilentWorkersAreWaitedForAtOnce) {
  NodeRigOptions options = Options(Closing::kByHand);
  options.device_pages = {12};
  NodeRig rig(options);
  std::vector<SessionId> stopped;
  for (const uint32_t uid : {1, 2, 3}) {
    stopped.push_back(rig.Open(uid));
    const ModelId model = rig.AddModel(stopped.back(), "m", {4});
    ASSERT_OK(rig.Release(stopped.back(),
                          rig.StageNow(stopped.back(), Key(model, 0))));
  }
  const SessionId bob = rig.Open(4);
  const ModelId bobs = rig.AddModel(bob, "m", {2});
  const RequestId request = rig.Stage(bob, Key(bobs, 0), absl::Seconds(0));
  EXPECT_THAT(rig.asks(), SizeIs(1));  // It may be running.
  rig.Advance(SlabBook::kPrompt);
  ASSERT_THAT(rig.asks(), SizeIs(3));
  std::set<SessionId> asked;
  for (const SlabAsk& ask : rig.asks()) asked.insert(ask.session);
  EXPECT_EQ(asked, std::set<SessionId>(stopped.begin(), stopped.end()));
  EXPECT_TRUE(rig.waiting(request));
  rig.Advance(SlabBook::kAnswerPatience);
  ASSERT_NE(rig.AnswerTo(request), nullptr);
  EXPECT_THAT(rig.AnswerTo(request)->status,
              StatusIs(kExhausted, HasSubstr("held open by idle workers")));
}

TEST(NodeSlabs, ALateAnswerIsStillGood) {
  Idle t(Closing::kByHand);
  const RequestId request = t.rig.Stage(t.bob, Key(t.bobs, 0));
  t.rig.Advance(absl::Seconds(5));
  EXPECT_TRUE(t.rig.waiting(request));
  while (!t.rig.asks().empty()) t.rig.AnswerAsk();
  t.rig.FinishAll();
  t.rig.LeaseOf(request);
}

TEST(NodeSlabs, TheEndOfAWorkerThatDoesNotAnswerGivesItsMemory) {
  Idle t(Closing::kByHand);
  const RequestId request = t.rig.Stage(t.bob, Key(t.bobs, 0));
  t.rig.Advance(absl::Seconds(5));
  EXPECT_TRUE(t.rig.waiting(request));
  t.rig.Close(t.ada);
  t.rig.FinishAll();
  t.rig.LeaseOf(request);
}

TEST(NodeSlabs, WhoKeepsASlabIsAskedAgainLater) {
  Idle t(Closing::kByHand);
  t.rig.keep_slabs = true;
  const RequestId request =
      t.rig.Stage(t.bob, Key(t.bobs, 0), absl::Seconds(60));
  t.rig.AnswerAsk();
  // Then the next slab, from the end, is of no use without it.
  EXPECT_THAT(t.rig.asks(), IsEmpty());
  t.rig.keep_slabs = false;
  t.rig.Advance(absl::Seconds(11));
  ASSERT_THAT(t.rig.asks(), SizeIs(1));
  t.rig.AnswerAsk();
  t.rig.FinishAll();
  t.rig.LeaseOf(request);
}

TEST(NodeSlabs, AClientThatKnowsNoAskIsSentNone) {
  Idle t(Closing::kNever);
  const RequestId request = t.rig.Stage(t.bob, Key(t.bobs, 0));
  EXPECT_THAT(t.rig.asks(), IsEmpty());
  t.rig.Advance(absl::Seconds(11));
  EXPECT_THAT(t.StatusOf(request),
              StatusIs(kExhausted, HasSubstr("held open by idle workers")));
}

TEST(NodeSlabs, AnAnswerToNothingChangesNothing) {
  Idle t(Closing::kByHand);
  Effects effects;
  std::vector<SlabId> all;
  for (const auto& [id, slab] : t.rig.device().slabs()) all.push_back(id);
  for (const uint64_t number : {0, 1, 99}) {
    t.rig.node().SlabsClosed(t.ada, {DeviceIndex(0), number, all}, t.rig.now,
                             effects);
    t.rig.node().SlabsClosed(SessionId(999), {DeviceIndex(7), number, all},
                             t.rig.now, effects);
  }
  t.rig.Stage(t.bob, Key(t.bobs, 0));
  EXPECT_THAT(t.rig.asks(), SizeIs(1));  // They still count as open.
}

// --- Plans ------------------------------------------------------------------

TEST(NodeSlabs, APlanStandsOnceAllOfItCanBeStaged) {
  Idle t(Closing::kByHand);
  // Resident alone: no ring would have been short of space.
  const RequestId request = t.rig.SetPlan(t.bob, t.bobs, {0, 1, 2, 3}, 8);
  EXPECT_TRUE(t.rig.waiting(request));
  ASSERT_THAT(t.rig.asks(), SizeIs(1));
  t.rig.AnswerAsk();
  EXPECT_EQ(t.rig.PlanOf(request).resident_bytes, 8 * kPage);
  for (uint32_t g = 0; g < 4; ++g) t.rig.StageNow(t.bob, Key(t.bobs, g));
}

TEST(NodeSlabs, NoPlanStandsThatCouldNotBeStaged) {
  Idle t(Closing::kByHand);
  const RequestId request =
      t.rig.SetPlan(t.bob, t.bobs, {0, 1, 2, 3}, 8, absl::Seconds(5));
  const RequestId at_once =
      t.rig.SetPlan(t.bob, t.bobs, {0, 1, 2, 3}, 8, absl::ZeroDuration());
  t.rig.Advance(absl::Seconds(3));
  EXPECT_THAT(t.StatusOf(at_once),
              StatusIs(kExhausted, HasSubstr("held open by idle workers")));
  EXPECT_TRUE(t.rig.waiting(request));
  t.rig.Advance(absl::Seconds(3));
  EXPECT_THAT(t.StatusOf(request),
              StatusIs(kExhausted, AllOf(HasSubstr("needs 32.0 KiB"),
                                         HasSubstr("32.0 KiB is held open"))));
  // As much as can be promised is nothing, until Ada's worker has ended.
  EXPECT_THAT(t.rig.CheckPlan(t.bob, t.bobs, {0, 1}, 0), StatusIs(kExhausted));
  t.rig.Close(t.ada);
  EXPECT_OK(t.rig.CheckPlan(t.bob, t.bobs, {0, 1}, 0));
}

TEST(NodeSlabs, WhatPlansWerePromisedIsNotTakenByASlabOfOthers) {
  NodeRig rig(Options(Closing::kAtOnce));
  const SessionId ada = rig.Open(1), bob = rig.Open(2);
  const ModelId adas = rig.AddModel(ada, "m", {1, 1, 1, 1});
  const ModelId bobs = rig.AddModel(bob, "m", {2, 2, 1});
  rig.PlanOf(rig.SetPlan(bob, bobs, {0, 1, 2}, 5));
  // Her slabs would be of 1, 1 and 2 pages; three are left.
  for (uint32_t g = 0; g < 3; ++g) rig.StageNow(ada, Key(adas, g));
  EXPECT_LE(rig.device().bytes(), 3 * kPage);
  for (uint32_t g = 0; g < 3; ++g) rig.StageNow(bob, Key(bobs, g));
}

// --- Who pays ---------------------------------------------------------------

QuotaLimits Pages(uint64_t pages) {
  QuotaLimits limits;
  limits.device_bytes = {pages * kPage};
  return limits;
}

TEST(NodeSlabs, AUserHasNoMoreOpenThanItsQuota) {
  NodeRig rig(Options(Closing::kByHand, Pages(4)));
  const SessionId ada = rig.Open(1);
  const ModelId adas = rig.AddModel(ada, "m", {2, 2, 2, 2});
  // Two that lie at the end of what four leases take.
  std::vector<LeaseId> leases;
  for (uint32_t g = 0; g < 2; ++g) {
    leases.push_back(rig.StageNow(ada, Key(adas, g)));
  }
  for (const LeaseId lease : leases) ASSERT_OK(rig.Release(ada, lease));
  // There is memory, and nobody else: she may not have more open all the same.
  const RequestId request = rig.Stage(ada, Key(adas, 2));
  rig.FinishAll();
  EXPECT_TRUE(rig.waiting(request));
  ASSERT_THAT(rig.asks(), SizeIs(1));
  rig.AnswerAsk();
  rig.FinishAll();
  rig.LeaseOf(request);
}

TEST(NodeSlabs, WhatAStoppedWorkerKeepsCountsAgainstItsUser) {
  NodeRig rig(Options(Closing::kByHand, Pages(4)));
  const SessionId stopped = rig.Open(1), ada = rig.Open(1), bob = rig.Open(2);
  const ModelId adas = rig.AddModel(ada, "m", {2, 2, 2, 2});
  const ModelId bobs = rig.AddModel(bob, "m", {2, 2});
  std::vector<LeaseId> leases;
  for (uint32_t g = 0; g < 2; ++g) {
    leases.push_back(rig.StageNow(stopped, Key(adas, g)));
  }
  for (const LeaseId lease : leases) ASSERT_OK(rig.Release(stopped, lease));
  const RequestId mine = rig.Stage(ada, Key(adas, 2));
  rig.FinishAll();
  for (int i = 0; i < 4; ++i) rig.Advance(absl::Seconds(3));
  ASSERT_NE(rig.AnswerTo(mine), nullptr);
  EXPECT_THAT(rig.AnswerTo(mine)->status,
              StatusIs(kExhausted, HasSubstr("quota.device_bytes")));
  // What it has open already is no more than it was.
  rig.StageNow(ada, Key(adas, 0));
  // At most her quota is lost to Bob.
  rig.StageNow(bob, Key(bobs, 0));
  rig.StageNow(bob, Key(bobs, 1));
}

// Leases of one page in slabs of one, one, two, four and four; a worker that is
// stopped gives nobody the rest.
TEST(NodeSlabs, ScatteredLeasesHoldNoMoreThanTheQuotaAndASlab) {
  NodeRigOptions options =
      Options(Closing::kAtOnce, {.device_bytes = {4 * kPage}});
  options.device_pages = {12};
  NodeRig rig(options);
  const SessionId ada = rig.Open(1);
  const ModelId adas = rig.AddModel(ada, "m", {1, 1, 1, 1, 1, 1, 1, 1, 1});
  std::vector<LeaseId> leases;
  const auto stage = [&](uint32_t group) {
    leases.push_back(rig.StageNow(ada, Key(adas, group)));
  };
  for (uint32_t g = 0; g < 4; ++g) stage(g);
  for (uint32_t g = 1; g < 4; ++g) ASSERT_OK(rig.Release(ada, leases[g]));
  for (uint32_t g = 4; g < 7; ++g) stage(g);
  for (uint32_t g = 5; g < 7; ++g) ASSERT_OK(rig.Release(ada, leases[g]));
  stage(7);  // Where she has slabs anyway.
  const RequestId third = rig.Stage(ada, Key(adas, 8));
  rig.FinishAll();
  for (int i = 0; i < 4; ++i) rig.Advance(absl::Seconds(3));
  ASSERT_NE(rig.AnswerTo(third), nullptr);
  EXPECT_THAT(
      rig.AnswerTo(third)->status,
      StatusIs(kExhausted, AllOf(HasSubstr("would hold 36.0 KiB of device 0"),
                                 HasSubstr("16.0 KiB are what it may"),
                                 HasSubstr("quota.device_bytes"))));
  ASSERT_OK(rig.Release(ada, leases[4]));
  ASSERT_OK(rig.Release(ada, leases[7]));
  stage(8);
}

}  // namespace hoistd::node_slabs_test
