// What one user may hold of a node, and what that leaves to the others. The rig
// compares the totals with a recount after every step.
#include <numeric>

#include "absl/strings/str_cat.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "tests/support/node_rig.h"
#include "tests/support/status_matchers.h"

namespace hoistd::node_quota_test {

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

constexpr auto kExhausted = absl::StatusCode::kResourceExhausted;
constexpr uint32_t kAda = 1000, kBob = 1001;
constexpr DeviceIndex kFirst(0);

GroupKey Key(ModelId model, uint32_t group) {
  return {model, GroupIndex(group)};
}

std::vector<uint32_t> Upto(uint32_t groups) {
  std::vector<uint32_t> order(groups);
  std::iota(order.begin(), order.end(), 0u);
  return order;
}

NodeRigOptions With(QuotaLimits each) {
  NodeRigOptions options;
  options.readers = Readers::kEveryone;
  options.quota.each = std::move(each);
  return options;
}

TEST(NodeQuota, ASessionTooManyIsRefusedUntilOneCloses) {
  NodeRig rig(With({.sessions = 2}));
  const SessionId first = rig.Open(kAda);
  rig.Open(kAda);
  EXPECT_THAT(rig.TryOpen(kAda),
              StatusIs(kExhausted, HasSubstr("quota.sessions")));
  EXPECT_OK(rig.TryOpen(kBob));
  rig.Close(first);
  EXPECT_OK(rig.TryOpen(kAda));
}

TEST(NodeQuota, AModelTooManyIsRefusedUntilOneIsForgotten) {
  NodeRig rig(With({.models = 2}));
  const SessionId ada = rig.Open(kAda);
  const ModelId first = rig.AddModel(ada, "a", {1});
  rig.Published(ada, "b", "g", 1);
  EXPECT_THAT(rig.TryAddModel(ada, "c", {1}),
              StatusIs(kExhausted, HasSubstr("quota.models")));
  EXPECT_OK(rig.TryAddModel(ada, "a", {1}));  // It is there already.
  const RequestId another = rig.Publish(ada, "c", "g", 1);
  rig.FinishAll();
  EXPECT_THAT(rig.AnswerTo(another)->status,
              StatusIs(kExhausted, HasSubstr("quota.models")));
  EXPECT_EQ(rig.TierOf(OnHost()).used_bytes, kPage);
  rig.Published(ada, "b", "h", 1);  // A group more is no model more.
  rig.AddModel(rig.Open(kBob), "c", {1, 1});
  // A model stays its owner's when no session is left.
  rig.Close(ada);
  const SessionId again = rig.Open(kAda);
  EXPECT_THAT(rig.TryAddModel(again, "d", {1}), StatusIs(kExhausted));
  ASSERT_OK(rig.Forget(first));
  EXPECT_OK(rig.TryAddModel(again, "d", {1}));
}

std::vector<FileIdentity> Files(uint64_t first, uint64_t count) {
  std::vector<FileIdentity> files;
  for (uint64_t i = 0; i < count; ++i) files.push_back({.inode = first + i});
  return files;
}

TEST(NodeQuota, FilesOfModelsCountOnceHoweverManyModelsAreReadFromThem) {
  NodeRig rig(With({.descriptors = 8}));
  const SessionId ada = rig.Open(kAda);
  const auto add = [&](SessionId who, const std::string& name,
                       std::vector<FileIdentity> files) {
    return rig.TryAddModel(who, name, {1}, 0, std::nullopt, std::move(files));
  };
  const auto first = add(ada, "a", Files(1, 2));
  ASSERT_OK(first);
  for (int i = 0; i < 100; ++i) {
    ASSERT_OK(add(ada, absl::StrCat("again", i), Files(1, 2)));
  }
  const auto second = add(ada, "b", Files(2, 3));  // Two more.
  ASSERT_OK(second);
  EXPECT_EQ(rig.node().quota().Of(User(kAda)).Of(Quota::kDescriptors), 8u);
  EXPECT_THAT(add(ada, "c", Files(9, 1)),
              StatusIs(kExhausted, AllOf(HasSubstr("uid 1000 holds 8 of 8"),
                                         HasSubstr("quota.descriptors"))));
  ASSERT_OK(add(ada, "d", Files(4, 1)));  // It is open already.
  ASSERT_OK(add(rig.Open(kBob), "c", Files(9, 4)));
  // A file stays open for the other models that are read from it.
  ASSERT_OK(rig.Forget((*first)->id));
  EXPECT_THAT(add(ada, "c", Files(9, 1)), StatusIs(kExhausted));
  ASSERT_OK(rig.Forget((*second)->id));  // Inode 3 goes.
  EXPECT_OK(add(ada, "c", Files(9, 1)));
}

TEST(NodeQuota, FilesOfAllUsersLeaveDescriptorsToSessions) {
  NodeRigOptions options = With({.descriptors = 8});
  options.quota.descriptors_of_all = 10;
  NodeRig rig(options);
  const auto add = [&](SessionId who, std::vector<FileIdentity> files) {
    return rig.TryAddModel(who, "m", {1}, 0, std::nullopt, std::move(files));
  };
  const auto adas = add(rig.Open(kAda), Files(1, 4));
  ASSERT_OK(adas);
  const SessionId bob = rig.Open(kBob);
  const auto refused = add(bob, Files(1, 2));
  EXPECT_THAT(refused, StatusIs(kExhausted, AllOf(HasSubstr("8 of 10"),
                                                  HasSubstr("LimitNOFILE"))));
  EXPECT_THAT(refused.status().message(), Not(HasSubstr("1000")));
  ASSERT_OK(rig.Forget((*adas)->id));
  EXPECT_OK(add(bob, Files(1, 2)));
}

TEST(NodeQuota, TensorsOfModelsCountUntilTheyAreForgotten) {
  Group group;
  group.name = "g0";
  const uint64_t published = BookBytesOf(group);
  group.runs.emplace_back();
  const uint64_t of_files = BookBytesOf(group);
  NodeRig rig(With({.header_bytes = 2 * of_files + published}));
  const SessionId ada = rig.Open(kAda);
  const ModelId first = rig.AddModel(ada, "a", {1, 1});
  EXPECT_THAT(rig.TryAddModel(ada, "b", {1, 1}),
              StatusIs(kExhausted, HasSubstr("quota.header_bytes")));
  rig.Published(ada, "p", "g0", 1);
  const RequestId another = rig.Publish(ada, "p", "g1", 1);
  rig.FinishAll();
  EXPECT_THAT(rig.AnswerTo(another)->status,
              StatusIs(kExhausted, HasSubstr("quota.header_bytes")));
  rig.AddModel(rig.Open(kBob), "b", {1, 1});
  ASSERT_OK(rig.Forget(first));
  rig.Published(ada, "p", "g1", 1);
}

TEST(NodeQuota, APlanTooManyIsRefusedUntilOneIsFreed) {
  NodeRig rig(With({.plans = 1}));
  const SessionId ada = rig.Open(kAda);
  const ModelId model = rig.AddModel(ada, "m", {1, 1, 1, 1});
  const PlanGrant plan = rig.PlanOf(rig.SetPlan(ada, model, Upto(4), 2));
  const RequestId second = rig.SetPlan(ada, model, Upto(4), 2);
  EXPECT_THAT(rig.AnswerTo(second)->status,
              StatusIs(kExhausted, HasSubstr("quota.plans")));
  // One that takes its place may be set.
  EXPECT_OK(rig.CheckPlan(ada, model, Upto(4), 3, plan.id));
  rig.PlanOf(rig.SetPlan(rig.Open(kBob), model, Upto(4), 2));
  ASSERT_OK(rig.EndPlan(ada, plan.id));
  EXPECT_THAT(rig.CheckPlan(ada, model, Upto(4), 2), StatusIs(kExhausted));
  rig.FreePlan(plan.id);
  rig.PlanOf(rig.SetPlan(ada, model, Upto(4), 2));
}

TEST(NodeQuota, APlanThatWaitsForItsRingCounts) {
  NodeRigOptions options = With({.plans = 1});
  options.device_pages = {4};
  NodeRig rig(options);
  const SessionId ada = rig.Open(kAda), bob = rig.Open(kBob);
  const ModelId model = rig.AddModel(ada, "m", {1, 1, 1, 1});
  // Three pages that are not in one piece.
  const LeaseId middle = rig.StageNow(bob, Key(model, 0));
  const LeaseId lease = rig.StageNow(bob, Key(model, 1));
  rig.StageNow(bob, Key(model, 2));
  ASSERT_OK(rig.Release(bob, middle));
  const ModelId large = rig.AddModel(ada, "l", {1, 1, 1});
  const RequestId waits = rig.SetPlan(ada, large, Upto(3), 2);
  ASSERT_TRUE(rig.waiting(waits));
  EXPECT_THAT(rig.CheckPlan(ada, large, Upto(3), 2),
              StatusIs(kExhausted, HasSubstr("quota.plans")));
  EXPECT_EQ(rig.node().quota().Of(User(kAda)).On(kFirst), 2 * kPage);
  rig.Advance(absl::Seconds(20));
  EXPECT_THAT(rig.AnswerTo(waits)->status, StatusIs(kExhausted));
  EXPECT_EQ(rig.node().quota().Of(User(kAda)).On(kFirst), 0u);
  ASSERT_OK(rig.Release(bob, lease));
  rig.PlanOf(rig.SetPlan(ada, large, Upto(3), 2));
}

TEST(NodeQuota, LeasesOfAllSessionsCountAndAnotherUserStillStages) {
  NodeRig rig(With({.device_bytes = {6 * kPage}}));
  const SessionId one = rig.Open(kAda), two = rig.Open(kAda);
  const SessionId bob = rig.Open(kBob);
  const ModelId model = rig.AddModel(one, "m", {3, 3, 2, 1});
  rig.StageNow(one, Key(model, 0));
  const LeaseId lease = rig.StageNow(two, Key(model, 1));
  const RequestId refused = rig.Stage(two, Key(model, 2));
  ASSERT_NE(rig.AnswerTo(refused), nullptr);
  EXPECT_THAT(rig.AnswerTo(refused)->status,
              StatusIs(kExhausted, AllOf(HasSubstr("holds 24.0 KiB of 24.0"),
                                         HasSubstr("quota.device_bytes"))));
  rig.StageNow(two, Key(model, 0));  // It counts already.
  rig.StageNow(bob, Key(model, 2));
  ASSERT_OK(rig.Release(two, lease));
  rig.StageNow(two, Key(model, 2));
}

TEST(NodeQuota, AStageThatWaitsCountsUntilItsSessionCloses) {
  NodeRig rig(With({.device_bytes = {4 * kPage}}));
  const SessionId one = rig.Open(kAda), two = rig.Open(kAda);
  const ModelId model = rig.AddModel(one, "m", {3, 3});
  EXPECT_TRUE(rig.waiting(rig.Stage(one, Key(model, 0))));
  const RequestId refused = rig.Stage(two, Key(model, 1));
  EXPECT_THAT(rig.AnswerTo(refused)->status, StatusIs(kExhausted));
  rig.Close(one);
  rig.StageNow(two, Key(model, 1));
}

TEST(NodeQuota, APlanOfBudgetZeroTakesWhatTheQuotaLeaves) {
  NodeRig rig(With({.device_bytes = {5 * kPage}}));
  const SessionId ada = rig.Open(kAda), other = rig.Open(kAda);
  const ModelId model = rig.AddModel(ada, "m", std::vector<uint64_t>(8, 1));
  const ModelId second = rig.AddModel(ada, "n", std::vector<uint64_t>(8, 1));
  rig.StageNow(other, Key(second, 0));
  const PlanGrant plan = rig.PlanOf(rig.SetPlan(ada, model, Upto(8), 0));
  EXPECT_EQ(plan.budget_bytes, 4 * kPage);
  EXPECT_EQ(rig.node().quota().Of(User(kAda)).On(kFirst), 5 * kPage);
  EXPECT_THAT(rig.CheckPlan(other, second, Upto(8), 2),
              StatusIs(kExhausted, AllOf(HasSubstr("uid 1000 holds 20.0 KiB"),
                                         HasSubstr("quota.device_bytes"))));
  // Its own place is free for what replaces it.
  EXPECT_OK(rig.CheckPlan(ada, model, Upto(8), 4, plan.id));
  EXPECT_THAT(rig.CheckPlan(ada, model, Upto(8), 8, plan.id),
              StatusIs(kExhausted));
  EXPECT_OK(rig.CheckPlan(rig.Open(kBob), model, Upto(8), 2));
}

TEST(NodeQuota, WhatPlansHoldStaysWithinTheQuotaButForWhatIsUrgent) {
  NodeRig rig(With({.held_bytes = 2 * kPage}));
  const SessionId ada = rig.Open(kAda), bob = rig.Open(kBob);
  const ModelId model = rig.AddModel(ada, "m", std::vector<uint64_t>(6, 1));
  const PlanGrant plan = rig.PlanOf(rig.SetPlan(ada, model, Upto(6), 2));
  const PlanGrant same = rig.PlanOf(rig.SetPlan(ada, model, Upto(6), 2));
  const PlanGrant others = rig.PlanOf(rig.SetPlan(bob, model, Upto(6), 2));
  EXPECT_EQ(rig.node().tenure().HoldableBytes(plan.id), 2 * kPage);
  EXPECT_THAT(rig.Moving(), IsEmpty());
  rig.Hold(plan.id, {0, 1});
  EXPECT_THAT(rig.Moving(), SizeIs(2));
  EXPECT_EQ(rig.node().tenure().HoldableBytes(plan.id), 0u);
  EXPECT_EQ(rig.node().tenure().HoldableBytes(others.id), 2 * kPage);
  rig.Hold(same.id, {0, 1});  // They count once.
  EXPECT_EQ(rig.node().quota().Of(User(kAda)).Of(Quota::kHeldBytes), 2 * kPage);
  rig.Hold(plan.id, {2});
  EXPECT_THAT(rig.Moving(), SizeIs(2));
  rig.Hold(plan.id, {2}, /*urgent=*/true);
  EXPECT_THAT(rig.Moving(), SizeIs(3));
  rig.FinishAll();
  rig.Unhold(plan.id, 0);
  EXPECT_EQ(rig.node().quota().Of(User(kAda)).Of(Quota::kHeldBytes), 3 * kPage);
  rig.Unhold(same.id, 0);
  EXPECT_EQ(rig.node().quota().Of(User(kAda)).Of(Quota::kHeldBytes), 2 * kPage);
  ASSERT_OK(rig.EndPlan(ada, plan.id));
  rig.FreePlan(plan.id);
  EXPECT_EQ(rig.node().tenure().HoldableBytes(same.id), kPage);
}

TEST(NodeQuota, WhatIsHeldAndPublishedIsBoundedTogetherAndBothCountsOnce) {
  NodeRig rig(With({.host_bytes = 5 * kPage}));
  const SessionId ada = rig.Open(kAda), bob = rig.Open(kBob);
  const ModelId model = rig.AddModel(ada, "m", std::vector<uint64_t>(6, 1));
  const PlanGrant plan = rig.PlanOf(rig.SetPlan(ada, model, Upto(6), 2));
  rig.Hold(plan.id, {0, 1, 2});
  rig.FinishAll();
  const GroupKey key = rig.Published(ada, "p", "a", 2);
  EXPECT_EQ(rig.node().tenure().HostBytesOf(User(kAda)), 5 * kPage);
  const RequestId refused = rig.Publish(ada, "p", "b", 1);
  ASSERT_NE(rig.AnswerTo(refused), nullptr);
  EXPECT_THAT(rig.AnswerTo(refused)->status,
              StatusIs(kExhausted, AllOf(HasSubstr("20.0 KiB of 20.0 KiB"),
                                         HasSubstr("quota.host_bytes"))));
  EXPECT_EQ(rig.node().tenure().HoldableBytes(plan.id), 0u);
  rig.Hold(plan.id, {3});
  EXPECT_THAT(rig.Moving(), IsEmpty());
  rig.Published(bob, "q", "a", 5);
  // A plan's own published weights take nothing more when they are held.
  rig.Unhold(plan.id, 0);
  const GroupKey more = rig.Published(ada, "p", "b", 1);
  const PlanGrant of_published =
      rig.PlanOf(rig.SetPlan(ada, key.model, Upto(2), 3));
  rig.Hold(of_published.id, {0, 1}, /*urgent=*/true);
  EXPECT_EQ(rig.node().tenure().HostBytesOf(User(kAda)), 5 * kPage);
  EXPECT_EQ(more.model, key.model);
}

TEST(NodeQuota, PublishedBytesThatCannotLeaveAreRefusedAtOnce) {
  NodeRig rig(With({.published_bytes = 4 * kPage}));
  const SessionId ada = rig.Open(kAda);
  const GroupKey key = rig.Published(ada, "p", "a", 3);
  const RequestId refused = rig.Publish(ada, "p", "b", 2);
  ASSERT_NE(rig.AnswerTo(refused), nullptr);
  EXPECT_THAT(rig.AnswerTo(refused)->status,
              StatusIs(kExhausted, AllOf(HasSubstr("12.0 KiB of 16.0 KiB"),
                                         HasSubstr("asks for 8.0 KiB"),
                                         HasSubstr("quota.published_bytes"),
                                         HasSubstr("disk.spill_dir"))));
  rig.Published(ada, "p", "a", 3);  // It is there already.
  rig.Published(rig.Open(kBob), "q", "a", 4);
  ASSERT_OK(rig.Forget(key.model));
  rig.Published(ada, "p", "b", 4);
}

TEST(NodeQuota, AnImageThatDoesNotArriveGivesItsQuotaBack) {
  NodeRig rig(With({.published_bytes = 4 * kPage}));
  const SessionId ada = rig.Open(kAda);
  rig.Publish(ada, "p", "a", 4);
  rig.Finish<ClientToHost>(absl::InvalidArgumentError("unsealed"));
  rig.Published(ada, "p", "a", 4);
}

TEST(NodeQuota, WithASpillStoreTheUsersOwnLeaveForANewOne) {
  NodeRigOptions options = With({.published_bytes = 4 * kPage});
  options.can_spill = true;
  NodeRig rig(options);
  const SessionId ada = rig.Open(kAda);
  const GroupKey old = rig.Published(ada, "p", "a", 2);
  rig.now += absl::Seconds(1);
  rig.Published(ada, "p", "b", 2);
  rig.now += absl::Seconds(1);
  const RequestId request = rig.Publish(ada, "p", "c", 2);
  ASSERT_THAT(rig.Moving<HostToSpill>(), SizeIs(1));
  EXPECT_EQ(rig.TransferOf(rig.Moving().at(0)).key, old);
  rig.FinishAll();
  ASSERT_NE(rig.AnswerTo(request), nullptr);
  EXPECT_OK(rig.AnswerTo(request)->status);
  EXPECT_TRUE(rig.Has(old, OnHost()));  // It need not leave the pool for that.
  const RequestId never = rig.Publish(ada, "p", "d", 5);
  ASSERT_NE(rig.AnswerTo(never), nullptr);
  EXPECT_THAT(rig.AnswerTo(never)->status,
              StatusIs(kExhausted, HasSubstr("quota.published_bytes")));
}

TEST(NodeQuota, TrustedUsersMayHaveAllThereIs) {
  NodeRigOptions options = With({.device_bytes = {2 * kPage}});
  options.quota.trusted = {User(0)};
  NodeRig rig(options);
  const SessionId root = rig.Open(0);
  const ModelId model = rig.AddModel(root, "m", {8});
  rig.StageNow(root, Key(model, 0));
}

}  // namespace hoistd::node_quota_test
