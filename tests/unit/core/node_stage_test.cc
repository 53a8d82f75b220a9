// Staging, step by step, and what is answered when it cannot be done.
#include <functional>

#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "tests/support/node_rig.h"
#include "tests/support/status_matchers.h"

namespace hoistd::node_stage_test {

using ::testing::AllOf;
using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::IsEmpty;
using testing::IsOk;
using testing::kPage;
using testing::NodeRig;
using testing::NodeRigOptions;
using ::testing::SizeIs;
using testing::StatusIs;

constexpr auto kExhausted = absl::StatusCode::kResourceExhausted;
constexpr auto kLate = absl::StatusCode::kDeadlineExceeded;
const TierAt kDevice = NodeRig::FirstDevice();

GroupKey Key(ModelId model, uint32_t group) {
  return {model, GroupIndex(group)};
}

TEST(NodeStage, ComesUpFromFileOverHostToDevice) {
  NodeRig rig;
  const SessionId session = rig.Open();
  const ModelId model = rig.AddModel(session, "m", {2, 3});
  const RequestId request = rig.Stage(session, Key(model, 1));
  EXPECT_EQ(rig.StateOf(Key(model, 1), kDevice), Residency::kReserved);
  ASSERT_THAT(rig.Moving(), SizeIs(1));
  EXPECT_THAT(rig.Moving<FilesToHost>(), SizeIs(1));
  EXPECT_TRUE(rig.TransferOf(rig.Moving()[0]).urgent);
  rig.Finish<FilesToHost>();
  EXPECT_TRUE(rig.waiting(request));
  EXPECT_TRUE(rig.Has(Key(model, 1), OnHost()));
  rig.Finish<HostToDevice>();
  const Answer* answer = rig.AnswerTo(request);
  ASSERT_NE(answer, nullptr);
  ASSERT_OK(answer->status);
  ASSERT_TRUE(answer->lease.has_value());
  EXPECT_EQ(answer->lease->key, Key(model, 1));
  EXPECT_EQ(answer->lease->bytes, 3 * kPage);
  EXPECT_FALSE(answer->lease->was_resident);
  EXPECT_THAT(answer->lease->new_slabs, SizeIs(1));
  EXPECT_EQ(rig.TierOf(kDevice).leased_bytes, 3 * kPage);
}

TEST(NodeStage, WhatIsResidentIsLeasedAtOnce) {
  NodeRig rig;
  const SessionId session = rig.Open();
  const ModelId model = rig.AddModel(session, "m", {2});
  rig.StageNow(session, Key(model, 0));
  const RequestId again =
      rig.Stage(session, Key(model, 0), absl::ZeroDuration());
  const Answer* answer = rig.AnswerTo(again);
  ASSERT_NE(answer, nullptr);
  ASSERT_OK(answer->status);
  EXPECT_TRUE(answer->lease->was_resident);
  EXPECT_THAT(answer->lease->new_slabs, IsEmpty());  // It has them already.
  EXPECT_THAT(rig.Moving(), IsEmpty());
  EXPECT_EQ(rig.counters().stages_resident, 1u);
}

TEST(NodeStage, ThoseWhoWantTheSameShareOneCopy) {
  NodeRig rig;
  const SessionId a = rig.Open(), b = rig.Open();
  const ModelId model = rig.AddModel(a, "m", {2});
  const RequestId first = rig.Stage(a, Key(model, 0));
  const RequestId second = rig.Stage(b, Key(model, 0));
  EXPECT_THAT(rig.Moving(), SizeIs(1));
  rig.FinishAll();
  rig.LeaseOf(first);
  rig.LeaseOf(second);
  EXPECT_EQ(rig.AnswerTo(first)->lease->offset,
            rig.AnswerTo(second)->lease->offset);
  EXPECT_EQ(rig.counters().host_to_device_bytes, 2 * kPage);
}

TEST(NodeStage, AStageHurriesWhatWasOnlyPrefetched) {
  NodeRig rig;
  const SessionId session = rig.Open();
  const ModelId model = rig.AddModel(session, "m", {2});
  ASSERT_OK(rig.Prefetch(session, model, {0}));
  const TransferId read = rig.Moving().at(0);
  EXPECT_FALSE(rig.TransferOf(read).urgent);
  rig.Stage(session, Key(model, 0));
  EXPECT_THAT(rig.hurried(), ElementsAre(read));
}

TEST(NodeStage, AStageHurriesAReadThatWasStartedForTheHostOnly) {
  NodeRig rig;
  const SessionId session = rig.Open();
  const ModelId model = rig.AddModel(session, "m", {2});
  ASSERT_OK(rig.Prefetch(session, model, {0}, OnHost()));
  const TransferId read = rig.Moving().at(0);
  rig.Stage(session, Key(model, 0));
  EXPECT_THAT(rig.hurried(), ElementsAre(read));
}

TEST(NodeStage, AStageThatMayNotWaitIsRefusedWithNumbers) {
  NodeRig rig({.device_pages = {4}});
  const SessionId holder = rig.Open(), other = rig.Open();
  const ModelId model = rig.AddModel(holder, "m", {3, 2});
  rig.StageNow(holder, Key(model, 0));
  const RequestId request =
      rig.Stage(other, Key(model, 1), absl::ZeroDuration());
  ASSERT_NE(rig.AnswerTo(request), nullptr);
  EXPECT_THAT(
      rig.AnswerTo(request)->status,
      StatusIs(kExhausted,
               AllOf(HasSubstr("needs 8.0 KiB on device 0; of 16.0 KiB"),
                     HasSubstr("12.0 KiB is leased by session"),
                     HasSubstr("(worker1)"),
                     HasSubstr("largest free piece is 4.0 KiB"))));
  EXPECT_THAT(rig.Moving(), IsEmpty());
  EXPECT_EQ(rig.counters().stages_refused, 1u);
}

TEST(NodeStage, AStageThatMayNotWaitForSpaceWaitsForBytes) {
  NodeRig rig;
  const SessionId session = rig.Open();
  const ModelId model = rig.AddModel(session, "m", {2});
  const RequestId request =
      rig.Stage(session, Key(model, 0), absl::ZeroDuration());
  rig.Advance(absl::Hours(1));
  EXPECT_TRUE(rig.waiting(request));
  rig.FinishAll();
  rig.LeaseOf(request);
}

TEST(NodeStage, WaitsForALeaseToBeReleased) {
  NodeRig rig({.device_pages = {4}});
  const SessionId holder = rig.Open(), other = rig.Open();
  const ModelId model = rig.AddModel(holder, "m", {3, 2});
  const LeaseId lease = rig.StageNow(holder, Key(model, 0));
  const RequestId request = rig.Stage(other, Key(model, 1));
  EXPECT_TRUE(rig.waiting(request));
  ASSERT_OK(rig.Release(holder, lease));
  rig.FinishAll();
  rig.LeaseOf(request);
  EXPECT_FALSE(rig.Has(Key(model, 0), kDevice));
  EXPECT_EQ(rig.counters().device_evictions, 1u);
}

TEST(NodeStage, ResourceExhaustedWhereItWaitedForSpace) {
  NodeRig rig({.device_pages = {4}});
  const SessionId holder = rig.Open(), other = rig.Open();
  const ModelId model = rig.AddModel(holder, "m", {3, 2});
  rig.StageNow(holder, Key(model, 0));
  const RequestId request = rig.Stage(other, Key(model, 1), absl::Seconds(5));
  EXPECT_EQ(rig.node().NextDeadline(), rig.now + absl::Seconds(5));
  rig.Advance(absl::Seconds(4));
  EXPECT_TRUE(rig.waiting(request));
  rig.Advance(absl::Seconds(1));
  ASSERT_NE(rig.AnswerTo(request), nullptr);
  EXPECT_THAT(rig.AnswerTo(request)->status,
              StatusIs(kExhausted, HasSubstr("leased by session")));
  EXPECT_EQ(rig.node().NextDeadline(), absl::InfiniteFuture());
}

TEST(NodeStage, DeadlineExceededWhereBytesWereOnTheirWay) {
  NodeRig rig;
  const SessionId session = rig.Open();
  const ModelId model = rig.AddModel(session, "m", {2});
  const RequestId request = rig.Stage(session, Key(model, 0), absl::Seconds(5));
  rig.Advance(absl::Seconds(5));
  ASSERT_NE(rig.AnswerTo(request), nullptr);
  EXPECT_THAT(rig.AnswerTo(request)->status,
              StatusIs(kLate, HasSubstr("longer deadline")));
  // The bytes are kept: the next stage need not wait.
  rig.FinishAll();
  rig.StageNow(session, Key(model, 0));
  EXPECT_EQ(rig.counters().file_read_bytes, 2 * kPage);
  EXPECT_EQ(rig.counters().host_to_device_bytes, 2 * kPage);
  EXPECT_EQ(rig.counters().stages_resident, 1u);
}

TEST(NodeStage, WhatCanNeverFitIsRefusedAtOnce) {
  NodeRig rig({.host_pages = 6, .device_pages = {4}});
  const SessionId session = rig.Open();
  const ModelId model = rig.AddModel(session, "m", {5, 7});
  const RequestId device = rig.Stage(session, Key(model, 0));
  ASSERT_NE(rig.AnswerTo(device), nullptr);
  EXPECT_THAT(rig.AnswerTo(device)->status,
              StatusIs(kExhausted, HasSubstr("device.pool")));
  const RequestId host = rig.Bring(Key(model, 1), OnHost(), /*pin=*/false);
  ASSERT_NE(rig.AnswerTo(host), nullptr);
  EXPECT_THAT(rig.AnswerTo(host)->status,
              StatusIs(kExhausted, HasSubstr("host.pool")));
}

TEST(NodeStage, ASessionStaysWithinItsBudget) {
  NodeRig rig;
  const SessionId session = rig.Open(1, /*budget_pages=*/4);
  const ModelId model = rig.AddModel(session, "m", {3, 2, 5});
  const LeaseId lease = rig.StageNow(session, Key(model, 0));
  const RequestId over = rig.Stage(session, Key(model, 1));
  ASSERT_NE(rig.AnswerTo(over), nullptr);
  EXPECT_THAT(rig.AnswerTo(over)->status,
              StatusIs(kExhausted, AllOf(HasSubstr("may lease 16.0 KiB"),
                                         HasSubstr("holds 12.0 KiB"),
                                         HasSubstr("budget of 20.0 KiB"))));
  // The same group once more costs nothing.
  const LeaseId again = rig.StageNow(session, Key(model, 0));
  ASSERT_OK(rig.Release(session, lease));
  EXPECT_NE(rig.AnswerTo(rig.Stage(session, Key(model, 1))), nullptr);
  ASSERT_OK(rig.Release(session, again));
  rig.StageNow(session, Key(model, 1));
  const RequestId never = rig.Stage(session, Key(model, 2));
  ASSERT_NE(rig.AnswerTo(never), nullptr);
  EXPECT_THAT(rig.AnswerTo(never)->status,
              StatusIs(kExhausted, HasSubstr("at least 20.0 KiB")));
}

TEST(NodeStage, AWaitingStageCountsInTheBudget) {
  NodeRig rig;
  const SessionId session = rig.Open(1, /*budget_pages=*/4);
  const ModelId model = rig.AddModel(session, "m", {3, 2});
  const RequestId first = rig.Stage(session, Key(model, 0));
  const RequestId second = rig.Stage(session, Key(model, 1));
  EXPECT_TRUE(rig.waiting(first));
  EXPECT_FALSE(rig.waiting(second));
  rig.Finish<FilesToHost>(absl::DataLossError("the file ends early"));
  EXPECT_FALSE(rig.waiting(first));
  rig.StageNow(session, Key(model, 1));  // The failed one's claim is gone.
}

TEST(NodeStage, AFailedReadIsToldAndTheNextStageTriesAgain) {
  NodeRig rig;
  const SessionId session = rig.Open();
  const ModelId model = rig.AddModel(session, "m", {2});
  const RequestId request = rig.Stage(session, Key(model, 0));
  rig.Finish<FilesToHost>(absl::DataLossError("the file ends early"));
  ASSERT_NE(rig.AnswerTo(request), nullptr);
  EXPECT_THAT(rig.AnswerTo(request)->status,
              StatusIs(absl::StatusCode::kDataLoss, HasSubstr("ends early")));
  EXPECT_EQ(rig.TierOf(OnHost()).used_bytes, 0u);
  EXPECT_EQ(rig.TierOf(kDevice).used_bytes, 0u);
  rig.StageNow(session, Key(model, 0));
}

TEST(NodeStage, AFailedCopyLeavesTheHostCopy) {
  NodeRig rig;
  const SessionId session = rig.Open();
  const ModelId model = rig.AddModel(session, "m", {2});
  const RequestId request = rig.Stage(session, Key(model, 0));
  rig.Finish<FilesToHost>();
  rig.Finish<HostToDevice>(absl::InternalError("the link is down"));
  ASSERT_NE(rig.AnswerTo(request), nullptr);
  EXPECT_THAT(rig.AnswerTo(request)->status,
              StatusIs(absl::StatusCode::kInternal));
  EXPECT_TRUE(rig.Has(Key(model, 0), OnHost()));
  EXPECT_EQ(rig.TierOf(kDevice).used_bytes, 0u);
  rig.Stage(session, Key(model, 0));
  EXPECT_THAT(rig.Moving<FilesToHost>(), IsEmpty());
  EXPECT_THAT(rig.Moving<HostToDevice>(), SizeIs(1));
}

TEST(NodeStage, NoSuchThingIsSaidSo) {
  NodeRig rig;
  const SessionId session = rig.Open();
  const ModelId model = rig.AddModel(session, "m", {2});
  const auto status = [&](RequestId request) {
    const Answer* answer = rig.AnswerTo(request);
    return answer == nullptr ? absl::UnknownError("waits") : answer->status;
  };
  constexpr auto kNotFound = absl::StatusCode::kNotFound;
  EXPECT_THAT(status(rig.Stage(session, Key(model, 9))), StatusIs(kNotFound));
  EXPECT_THAT(status(rig.Stage(session, Key(ModelId(99), 0))),
              StatusIs(kNotFound));
  EXPECT_THAT(status(rig.Stage(SessionId(99), Key(model, 0))),
              StatusIs(kNotFound));
  EXPECT_THAT(
      status(rig.Stage(session, Key(model, 0), absl::Seconds(1), /*device=*/7)),
      StatusIs(absl::StatusCode::kInvalidArgument, HasSubstr("has 1")));
  EXPECT_THAT(rig.Release(session, LeaseId(99)), StatusIs(kNotFound));
  EXPECT_THAT(rig.SetOrder(session, model, {0, 1}),
              StatusIs(absl::StatusCode::kInvalidArgument));
}

TEST(NodeStage, NothingThatOutlivesItsSessionIsSentToTheDisk) {
  NodeRig rig;
  const SessionId session = rig.Open();
  const ModelId model = rig.AddModel(session, "m", {2});
  EXPECT_THAT(rig.Prefetch(session, model, {0}, OnDisk()),
              StatusIs(absl::StatusCode::kPermissionDenied));
  EXPECT_THAT(rig.Moving(), IsEmpty());
  EXPECT_EQ(rig.TierOf(OnHost()).used_bytes, 0u);
}

TEST(NodeStage, ALeaseIsReleasedByItsHolderAlone) {
  NodeRig rig;
  const SessionId a = rig.Open(), b = rig.Open();
  const ModelId model = rig.AddModel(a, "m", {2});
  const LeaseId lease = rig.StageNow(a, Key(model, 0));
  EXPECT_THAT(rig.Release(b, lease), StatusIs(absl::StatusCode::kNotFound));
  EXPECT_EQ(rig.TierOf(kDevice).leased_bytes, 2 * kPage);
  ASSERT_OK(rig.Release(a, lease));
  EXPECT_THAT(rig.Release(a, lease), StatusIs(absl::StatusCode::kNotFound));
  EXPECT_EQ(rig.TierOf(kDevice).leased_bytes, 0u);
}

TEST(NodeStage, OtherUsersModelsAreNotThere) {
  NodeRig rig;
  const SessionId owner = rig.Open(1), other = rig.Open(2), root = rig.Open(0);
  const ModelId model = rig.AddModel(owner, "m", {2});
  EXPECT_OK(rig.node().tenure().Find(owner, "m"));
  EXPECT_OK(rig.node().tenure().Find(root, "1:m"));
  constexpr auto kNotFound = absl::StatusCode::kNotFound;
  EXPECT_THAT(rig.node().tenure().Find(other, "m"), StatusIs(kNotFound));
  EXPECT_THAT(rig.node().tenure().Find(other, "1:m"), StatusIs(kNotFound));
  EXPECT_THAT(rig.node().tenure().Find(other, model), StatusIs(kNotFound));
  rig.StageNow(owner, Key(model, 0));
  const RequestId request = rig.Stage(other, Key(model, 0));
  ASSERT_NE(rig.AnswerTo(request), nullptr);
  EXPECT_THAT(rig.AnswerTo(request)->status, StatusIs(kNotFound));
  EXPECT_THAT(rig.Prefetch(other, model, {0}), StatusIs(kNotFound));
  EXPECT_THAT(rig.SetOrder(other, model, {0}), StatusIs(kNotFound));
  // The name is free for the other's own.
  EXPECT_NE(rig.AddModel(other, "m", {1}), model);
  // An admin is told whose there are, and takes none unasked.
  EXPECT_THAT(rig.node().tenure().Find(root, "m"),
              StatusIs(kNotFound, HasSubstr("1:m")));
  EXPECT_OK(rig.node().tenure().Find(root, "2:m"));
}

TEST(NodeStage, TheSameWeightsAreAttachedToAndOthersRefused) {
  NodeRig rig({.readers = Readers::kEveryone});
  const SessionId a = rig.Open(1), b = rig.Open(2);
  const ModelId model = rig.AddModel(a, "m", {2});
  EXPECT_EQ(rig.AddModel(b, "m", {2}), model);
  EXPECT_THAT(
      rig.TryAddModel(a, "m", {2}, /*content=*/1),
      StatusIs(absl::StatusCode::kAlreadyExists, HasSubstr("other weights")));
  // Another user's name is no obstacle, and no way to give them weights.
  ASSERT_OK_AND_ASSIGN(const ModelPtr own,
                       rig.TryAddModel(b, "m", {2}, /*content=*/1));
  EXPECT_NE(own->id, model);
  EXPECT_EQ((*rig.node().tenure().Find(b, "m"))->id, own->id);
}

TEST(NodeStage, UsersWhoMayNotReadEachOthersModelsShareNoSlab) {
  NodeRig rig({.device_pages = {8}, .slab_pages = 4});
  const SessionId a = rig.Open(1), b = rig.Open(2);
  const RequestId ra = rig.Stage(a, Key(rig.AddModel(a, "m", {1}), 0));
  const RequestId rb = rig.Stage(b, Key(rig.AddModel(b, "m", {1}), 0));
  rig.FinishAll();
  rig.LeaseOf(ra);
  rig.LeaseOf(rb);
  EXPECT_NE(rig.AnswerTo(ra)->lease->new_slabs.at(0).slab.id,
            rig.AnswerTo(rb)->lease->new_slabs.at(0).slab.id);
}

TEST(NodeStage, ASharedStageLiesInAnIpcSlab) {
  NodeRig rig({.backing = Backing::kVmm, .ipc = true});
  const SessionId session = rig.Open();
  const ModelId model = rig.AddModel(session, "m", {2});
  rig.StageNow(session, Key(model, 0));
  const RequestId shared =
      rig.Stage(session, Key(model, 0), absl::Seconds(9), 0, /*shared=*/true);
  rig.FinishAll();
  rig.LeaseOf(shared);
  EXPECT_EQ(rig.AnswerTo(shared)->lease->new_slabs.at(0).slab.backing,
            Backing::kIpc);
  EXPECT_EQ(rig.TierOf(kDevice).used_bytes, 4 * kPage);
}

TEST(NodeStage, DrainingTakesNoNewWorkAndFinishesTheOld) {
  NodeRig rig({.can_spill = true});
  const SessionId session = rig.Open(), other = rig.Open(2);
  const ModelId model = rig.AddModel(session, "m", {2, 2, 1});
  const GroupKey published = rig.Published(session, "p", "a", 1);
  const RequestId old = rig.Stage(session, Key(model, 0));
  rig.Drain(true);
  constexpr auto kUnavailable = absl::StatusCode::kUnavailable;
  Effects effects;
  EXPECT_THAT(rig.node().OpenSession({}, rig.now, effects),
              StatusIs(kUnavailable));
  EXPECT_THAT(rig.TryAddModel(session, "n", {1}), StatusIs(kUnavailable));
  const RequestId publish = rig.Publish(other, "q", "g", 1);
  EXPECT_THAT(rig.AnswerTo(publish)->status, StatusIs(kUnavailable));
  const RequestId pin = rig.Bring(Key(model, 1), OnHost(), /*pin=*/true);
  EXPECT_THAT(rig.AnswerTo(pin)->status,
              StatusIs(kUnavailable, HasSubstr("drain --resume")));
  // A pass of one who uses the model ends, whatever of it was staged before.
  const RequestId late = rig.Stage(session, Key(model, 1));
  ASSERT_OK(rig.Prefetch(session, model, {2}));
  rig.FinishAll();
  ASSERT_OK(rig.Release(session, rig.LeaseOf(old)));
  ASSERT_OK(rig.Release(session, rig.LeaseOf(late)));
  // Nor is a model that is being published left a half.
  const RequestId more = rig.Publish(session, "p", "b", 1);
  const RequestId read = rig.ReadImage(session, published);
  rig.FinishAll();
  EXPECT_OK(rig.AnswerTo(more)->status);
  EXPECT_OK(rig.AnswerTo(read)->status);
  rig.Drain(false);
  rig.StageNow(session, Key(model, 1));
}

TEST(NodeStage, DrainingIsToldOnceAndSoIsItsEnd) {
  NodeRig rig;
  for (const bool drains : {false, true, true, false, false}) rig.Drain(drains);
  std::vector<EventKind> kinds;
  for (const NodeEvent& event : rig.events()) kinds.push_back(event.kind);
  EXPECT_EQ(kinds, (std::vector{EventKind::kDraining, EventKind::kResumed}));
}

TEST(NodeStage, WaitsWhileTheHostPoolGrows) {
  NodeRig rig({.host_pages = 8, .host_ready_pages = 1});
  const SessionId session = rig.Open();
  const ModelId model = rig.AddModel(session, "m", {4});
  const RequestId request =
      rig.Stage(session, Key(model, 0), absl::ZeroDuration());
  EXPECT_TRUE(rig.waiting(request));
  rig.GrowHost(3);
  EXPECT_THAT(rig.Moving(), IsEmpty());
  rig.GrowHost(4);
  rig.FinishAll();
  rig.LeaseOf(request);
  rig.GrowHost(100);  // More than it was to be is not believed.
  EXPECT_EQ(rig.TierOf(OnHost()).allocated_bytes, 8 * kPage);
}

TEST(NodeStage, AFullGpuIsAskedAgainByTheNextStage) {
  NodeRig rig({.device_pages = {8}, .device_memory_pages = 4});
  const SessionId session = rig.Open();
  const ModelId model = rig.AddModel(session, "m", {4, 4});
  rig.StageNow(session, Key(model, 0));
  const RequestId refused =
      rig.Stage(session, Key(model, 1), absl::ZeroDuration());
  ASSERT_NE(rig.AnswerTo(refused), nullptr);
  EXPECT_THAT(rig.AnswerTo(refused)->status,
              StatusIs(kExhausted, HasSubstr("memory is all used")));
  rig.device().set_memory_bytes(8 * kPage);
  rig.StageNow(session, Key(model, 1));
}

// A session that closes at any step of a stage leaves nothing behind.
TEST(NodeStage, ClosingAtAnyStepGivesEverythingBack) {
  for (int step = 0; step < 4; ++step) {
    SCOPED_TRACE(step);
    NodeRig rig;
    const SessionId session = rig.Open(), other = rig.Open();
    const ModelId model = rig.AddModel(session, "m", {2});
    rig.Stage(session, Key(model, 0));
    if (step > 0) rig.Finish<FilesToHost>();
    if (step > 1) rig.Finish<HostToDevice>();
    if (step > 2) rig.Stage(session, Key(model, 0));
    rig.Close(session);
    rig.FinishAll();
    EXPECT_EQ(rig.TierOf(kDevice).leased_bytes, 0u);
    EXPECT_THAT(rig.node().tenure().sessions().all(), SizeIs(1));
    rig.Advance(absl::Minutes(2));
    EXPECT_EQ(rig.node().NextDeadline(), absl::InfiniteFuture());
    EXPECT_EQ(rig.Evict("m").kept, 0u);
    EXPECT_EQ(rig.TierOf(kDevice).used_bytes, 0u);
    EXPECT_EQ(rig.TierOf(OnHost()).used_bytes, 0u);
    rig.StageNow(other, Key(model, 0));
  }
}

TEST(NodeStage, AClosedSessionsWaitEvictsNobody) {
  NodeRig rig({.device_pages = {4}});
  const SessionId session = rig.Open();
  const ModelId model = rig.AddModel(session, "m", {3, 2});
  rig.StageNow(session, Key(model, 0));
  rig.Stage(session, Key(model, 1));  // Waits for its own session's lease.
  rig.Close(session);
  EXPECT_TRUE(rig.Has(Key(model, 0), kDevice));
  EXPECT_THAT(rig.Moving(), IsEmpty());
}

}  // namespace hoistd::node_stage_test
