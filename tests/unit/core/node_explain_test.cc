// Refusals tell a user of its own sessions and models, and of other users only
// how much they hold; admins are told who has what.
#include <numeric>

#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "tests/support/node_rig.h"
#include "tests/support/status_matchers.h"

namespace hoistd::node_explain_test {

using ::testing::AllOf;
using ::testing::HasSubstr;
using testing::IsOk;
using testing::kPage;
using testing::NodeRig;
using testing::NodeRigOptions;
using ::testing::Not;
using testing::StatusIs;

constexpr auto kExhausted = absl::StatusCode::kResourceExhausted;
constexpr auto kPrecondition = absl::StatusCode::kFailedPrecondition;
constexpr uint32_t kAda = 1000, kBob = 1001, kRoot = 0;

GroupKey Key(ModelId model, uint32_t group) {
  return {model, GroupIndex(group)};
}

std::vector<uint32_t> Upto(uint32_t groups) {
  std::vector<uint32_t> order(groups);
  std::iota(order.begin(), order.end(), 0u);
  return order;
}

// Names no session, worker or model: what Ada has is called "secret".
MATCHER(TellsNothingOfOthers, "") {
  const std::string text(arg);
  for (const char* word : {"session ", "worker1000", "secret"}) {
    if (text.find(word) == std::string::npos) continue;
    *result_listener << "it names " << word;
    return false;
  }
  return true;
}

class NodeExplain : public ::testing::Test {
 protected:
  absl::Status StatusOf(RequestId request) {
    const Answer* answer = rig_.AnswerTo(request);
    if (answer == nullptr) return absl::InternalError("not answered");
    return answer->status;
  }
  // Refused at once.
  absl::Status Staged(SessionId session, GroupKey key) {
    return StatusOf(rig_.Stage(session, key, absl::ZeroDuration()));
  }

  NodeRig rig_{{.host_pages = 8,
                .device_pages = {8},
                .slab_pages = 1,
                .closing = NodeRigOptions::Closing::kNever}};
  SessionId ada_ = rig_.Open(kAda), bob_ = rig_.Open(kBob);
  SessionId root_ = rig_.Open(kRoot);
  ModelId secret_ = rig_.AddModel(ada_, "secret", {5, 5});
  ModelId bobs_ = rig_.AddModel(bob_, "bobs", {4, 1});
  ModelId roots_ = rig_.AddModel(root_, "roots", {4});
};

TEST_F(NodeExplain, AStageTellsEachUserWhatItMayKnow) {
  rig_.StageNow(ada_, Key(secret_, 0));
  EXPECT_THAT(Staged(bob_, Key(bobs_, 0)),
              StatusIs(kExhausted,
                       AllOf(TellsNothingOfOthers(),
                             HasSubstr("needs 16.0 KiB on device 0"),
                             HasSubstr("20.0 KiB is used by other users"))));
  EXPECT_THAT(
      Staged(root_, Key(roots_, 0)),
      StatusIs(kExhausted, AllOf(HasSubstr("20.0 KiB is leased by session"),
                                 HasSubstr("(worker1000)"),
                                 Not(HasSubstr("other users")))));
  EXPECT_THAT(
      Staged(ada_, Key(secret_, 1)),
      StatusIs(kExhausted, AllOf(HasSubstr("20.0 KiB is leased by session"),
                                 Not(HasSubstr("other users")))));
}

TEST_F(NodeExplain, TwoWhoWaitForOneCopyAreToldApart) {
  NodeRig rig({.device_pages = {4}, .readers = Readers::kEveryone});
  const SessionId ada = rig.Open(kAda), bob = rig.Open(kBob);
  const ModelId secret = rig.AddModel(ada, "secret", {3});
  const ModelId other = rig.AddModel(bob, "other", {2});
  rig.StageNow(ada, Key(secret, 0));
  const RequestId adas = rig.Stage(ada, Key(other, 0));
  const RequestId bobs = rig.Stage(bob, Key(other, 0));
  rig.Advance(absl::Seconds(10));
  ASSERT_NE(rig.AnswerTo(adas), nullptr);
  ASSERT_NE(rig.AnswerTo(bobs), nullptr);
  EXPECT_THAT(rig.AnswerTo(adas)->status,
              StatusIs(kExhausted, HasSubstr("is leased by session")));
  EXPECT_THAT(rig.AnswerTo(bobs)->status,
              StatusIs(kExhausted, AllOf(TellsNothingOfOthers(),
                                         HasSubstr("used by other users"))));
}

TEST_F(NodeExplain, APublicationTellsOfOnesOwnAndOthersInAll) {
  rig_.Published(ada_, "secret2", "a", 3);
  rig_.Published(bob_, "mine", "a", 2);
  const RequestId bobs =
      rig_.Publish(bob_, "mine", "b", 4, 0, absl::Seconds(1));
  rig_.Advance(absl::Seconds(1));
  EXPECT_THAT(StatusOf(bobs),
              StatusIs(kExhausted,
                       AllOf(TellsNothingOfOthers(),
                             HasSubstr("8.0 KiB is published and nowhere else"),
                             HasSubstr("12.0 KiB is used by other users"))));
  const RequestId roots = rig_.Publish(root_, "r", "a", 4, 0, absl::Seconds(1));
  rig_.Advance(absl::Seconds(1));
  EXPECT_THAT(
      StatusOf(roots),
      StatusIs(kExhausted, AllOf(HasSubstr("20.0 KiB is published and nowhere"),
                                 Not(HasSubstr("other users")))));
}

TEST_F(NodeExplain, WhyASpillFailedIsForAdmins) {
  NodeRig rig({.host_pages = 4, .can_spill = true});
  const SessionId bob = rig.Open(kBob), root = rig.Open(kRoot);
  rig.Published(bob, "mine", "a", 2);
  const ModelId bobs = rig.AddModel(bob, "bobs", {3});
  const ModelId roots = rig.AddModel(root, "roots", {3});
  const RequestId first = rig.Stage(bob, Key(bobs, 0), absl::ZeroDuration());
  const RequestId second = rig.Stage(root, Key(roots, 0), absl::ZeroDuration());
  rig.Finish<HostToSpill>(absl::ResourceExhaustedError("no room for secret/a"));
  ASSERT_NE(rig.AnswerTo(first), nullptr);
  ASSERT_NE(rig.AnswerTo(second), nullptr);
  EXPECT_THAT(rig.AnswerTo(first)->status,
              StatusIs(kExhausted, AllOf(TellsNothingOfOthers(),
                                         HasSubstr("spilling failed"))));
  EXPECT_THAT(rig.AnswerTo(second)->status,
              StatusIs(kExhausted, HasSubstr("no room for secret/a")));
}

TEST_F(NodeExplain, APlanThatDoesNotFitTellsOfOthersInAll) {
  const PlanGrant plan = rig_.PlanOf(rig_.SetPlan(ada_, secret_, Upto(2), 5));
  rig_.StageNow(bob_, Key(bobs_, 1));
  EXPECT_THAT(
      rig_.CheckPlan(bob_, bobs_, Upto(2), 5),
      StatusIs(kExhausted,
               AllOf(TellsNothingOfOthers(),
                     HasSubstr("4.0 KiB is taken by your leases and plans"),
                     HasSubstr("20.0 KiB is pinned or taken by other users"),
                     Not(HasSubstr("hoistctl")))));
  EXPECT_THAT(rig_.CheckPlan(root_, roots_, {0}, 4),
              StatusIs(kExhausted, HasSubstr("`hoistctl plans` shows who")));
  // A ring is told of as leases are.
  EXPECT_THAT(
      Staged(bob_, Key(bobs_, 0)),
      StatusIs(kExhausted, AllOf(HasSubstr("20.0 KiB is used by other users"),
                                 HasSubstr("4.0 KiB is leased by session"),
                                 Not(HasSubstr("worker1000")))));
  EXPECT_THAT(Staged(root_, Key(roots_, 0)),
              StatusIs(kExhausted, HasSubstr("20.0 KiB is in rings of plans")));
  ASSERT_OK(rig_.EndPlan(ada_, plan.id));
}

TEST_F(NodeExplain, APlansRingThatGetsNoSpaceTellsNothingOfOthers) {
  // Idle, but mapped by a session that closes nothing.
  ASSERT_OK(rig_.Release(ada_, rig_.StageNow(ada_, Key(secret_, 0))));
  const RequestId request = rig_.SetPlan(bob_, bobs_, Upto(2), 4);
  ASSERT_TRUE(rig_.waiting(request));
  rig_.Advance(absl::Seconds(10));
  EXPECT_THAT(
      StatusOf(request),
      StatusIs(kExhausted,
               AllOf(TellsNothingOfOthers(), HasSubstr("no space for the plan"),
                     HasSubstr("20.0 KiB is used by other users"),
                     HasSubstr("20.0 KiB is held open by idle workers "
                               "that do not answer"))));
}

TEST_F(NodeExplain, ForgetNamesSessionsToThoseWhoMayKnowThem) {
  NodeRig rig({.readers = Readers::kEveryone});
  const SessionId ada = rig.Open(kAda), bob = rig.Open(kBob);
  const ModelId bobs = rig.AddModel(bob, "bobs", {1, 1, 1});
  const PlanGrant plan = rig.PlanOf(rig.SetPlan(ada, bobs, Upto(3), 2));
  Peer owner = *rig.node().tenure().PeerOf(bob);
  Effects effects;
  EXPECT_THAT(
      rig.node().Forget(bobs, rig.now, effects, &owner),
      StatusIs(kPrecondition, AllOf(TellsNothingOfOthers(),
                                    HasSubstr("is streamed by another user"))));
  EXPECT_THAT(rig.Forget(bobs),
              StatusIs(kPrecondition, AllOf(HasSubstr("is streamed by session"),
                                            HasSubstr("hoistctl plans"))));
  ASSERT_OK(rig.EndPlan(ada, plan.id));
  rig.FreePlan(plan.id);
  rig.StageNow(ada, Key(bobs, 0));
  EXPECT_THAT(
      rig.node().Forget(bobs, rig.now, effects, &owner),
      StatusIs(kPrecondition, AllOf(HasSubstr("bobs/g0 is leased on device 0"),
                                    Not(HasSubstr("hoistctl")))));
}

TEST_F(NodeExplain, WhatOneMayNotReadIsAsIfItWereNotThere) {
  const ModelId large = rig_.AddModel(ada_, "secret3", {100});
  const absl::Status none = Staged(bob_, Key(ModelId(12345), 0));
  for (const ModelId model : {secret_, large}) {
    EXPECT_EQ(Staged(bob_, Key(model, 0)), none);
  }
  EXPECT_EQ(rig_.CheckPlan(bob_, secret_, {0}, 2),
            rig_.CheckPlan(bob_, ModelId(12345), {0}, 2));
}

}  // namespace hoistd::node_explain_test
