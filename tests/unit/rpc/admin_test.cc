#include <fstream>
#include <string>
#include <vector>

#include "daemon/rpc/admin_service.h"
#include "gmock/gmock.h"
#include "grpcpp/server_builder.h"
#include "gtest/gtest.h"
#include "tests/unit/rpc/rpc_fixture.h"

namespace hoistd::admin_test {

using ::hoistd::testing::MakeModel;
using ::hoistd::testing::RpcTest;
using ::testing::HasSubstr;
namespace v1 = hoist::v1;

SessionSnapshot Holding(uint64_t id, uint32_t leases) {
  SessionSnapshot session;
  session.id = SessionId(id);
  session.client_name = "worker";
  session.leases = leases;
  return session;
}

class AdminTest : public RpcTest {};

TEST_F(AdminTest, StatusIsFactsAndSnapshot) {
  engine_.verb<SnapshotArgs>().Answer([](auto call) {
    NodeSnapshot snapshot;
    snapshot.draining = true;
    TierSnapshot tier;
    tier.at = OnHost();
    tier.capacity_bytes = 100;
    tier.used_bytes = 30;
    tier.unsaved_bytes = 20;
    tier.holders = {{"m/a", 30}};
    snapshot.tiers.push_back(tier);
    snapshot.sessions = {Holding(1, 2), Holding(2, 3)};
    snapshot.counters.stages = 9;
    snapshot.links = {{.device = DeviceIndex(3),
                       .plan_bytes = 10,
                       .lease_bytes = 20,
                       .background_bytes = 30,
                       .own_bytes = 70,
                       .own_read_bytes = 80,
                       .permits = {{.id = PermitId(5),
                                    .session = SessionId(2),
                                    .client_name = "trainer",
                                    .share = {.weight = 4},
                                    .copied_bytes = 71,
                                    .read_bytes = 81,
                                    .grants = 6,
                                    .late_grants = 1}},
                       .bytes_per_second = 40,
                       .read_bytes_per_second = 60,
                       .load_max_bytes_per_second = 50}};
    call.done(snapshot);
  });
  grpc::ClientContext context;
  v1::NodeStatus status;
  ASSERT_TRUE(admin_->Status(&context, {}, &status).ok());
  EXPECT_EQ(status.version(), "1.2.3");
  EXPECT_TRUE(status.draining());
  ASSERT_EQ(status.tiers_size(), 1);
  EXPECT_EQ(status.tiers(0).tier(), v1::TIER_HOST);
  EXPECT_EQ(status.tiers(0).holders(0).name(), "m/a");
  EXPECT_EQ(status.tiers(0).unsaved_bytes(), 20u);
  EXPECT_EQ(status.sessions(), 2u);
  EXPECT_EQ(status.leases(), 5u);
  EXPECT_EQ(status.counters().stages(), 9u);
  EXPECT_EQ(status.io().engine(), "threads");
  EXPECT_EQ(status.notes(0), "a note");
  ASSERT_EQ(status.links_size(), 1);
  EXPECT_EQ(status.links(0).device(), 3u);
  EXPECT_EQ(status.links(0).plan_bytes(), 10u);
  EXPECT_EQ(status.links(0).lease_bytes(), 20u);
  EXPECT_EQ(status.links(0).background_bytes(), 30u);
  EXPECT_EQ(status.links(0).bytes_per_second(), 40u);
  EXPECT_EQ(status.links(0).load_max_bytes_per_second(), 50u);
  EXPECT_EQ(status.links(0).read_bytes_per_second(), 60u);
  EXPECT_EQ(status.links(0).own_bytes(), 70u);
  EXPECT_EQ(status.links(0).own_read_bytes(), 80u);
  ASSERT_EQ(status.links(0).permits_size(), 1);
  const v1::PermitStatus& permit = status.links(0).permits(0);
  EXPECT_EQ(permit.id(), 5u);
  EXPECT_EQ(permit.session_id(), 2u);
  EXPECT_EQ(permit.client_name(), "trainer");
  EXPECT_EQ(permit.share().weight(), 4u);
  EXPECT_EQ(permit.copied_bytes(), 71u);
  EXPECT_EQ(permit.read_bytes(), 81u);
  EXPECT_EQ(permit.grants(), 6u);
  EXPECT_EQ(permit.late_grants(), 1u);
  EXPECT_EQ(status.dropped_notes(), 2u);
}

TEST_F(AdminTest, AnothersModelMustBeNamedWithItsOwner) {
  engine_.verb<SnapshotArgs>().Answer([](auto call) {
    NodeSnapshot snapshot;
    for (uint32_t uid : {1000u, 1001u}) {
      ModelSnapshot model;
      model.name = "m";
      model.owner = User(uid);
      GroupSnapshot group;
      group.name = "of " + std::to_string(uid);
      model.groups.push_back(group);
      snapshot.models.push_back(model);
    }
    call.done(snapshot);
  });
  const auto list = [this](const std::string& name,
                           v1::ListGroupsResponse* response) {
    grpc::ClientContext context;
    v1::ListGroupsRequest request;
    request.set_model(name);
    return admin_->ListGroups(&context, request, response);
  };
  v1::ListGroupsResponse response;
  const grpc::Status nobodys = list("m", &response);
  EXPECT_EQ(nobodys.error_code(), grpc::StatusCode::NOT_FOUND);
  EXPECT_THAT(nobodys.error_message(), HasSubstr("UID:NAME"));
  ASSERT_TRUE(list("1001:m", &response).ok());
  EXPECT_EQ(response.groups(0).name(), "of 1001");
  EXPECT_EQ(list("x", &response).error_code(), grpc::StatusCode::NOT_FOUND);
}

TEST_F(AdminTest, EvictSaysWhatStaysAndWhy) {
  engine_.verb<EvictArgs>().Answer([](auto call) {
    EXPECT_TRUE(call.args.forget);
    EXPECT_EQ(call.args.which.model, "m");
    EXPECT_FALSE(call.args.which.at.has_value());
    CopyTotals totals;
    totals.groups = 2;
    totals.bytes = 8192;
    totals.kept = 1;
    totals.kept_reason = "leased by session 3";
    call.done(totals);
  });
  v1::EvictRequest request;
  request.mutable_copies()->set_model("m");
  request.set_forget(true);
  v1::EvictResponse response;
  grpc::ClientContext context;
  ASSERT_TRUE(admin_->Evict(&context, request, &response).ok());
  EXPECT_EQ(response.groups(), 2u);
  EXPECT_EQ(response.kept(), 1u);
  EXPECT_EQ(response.kept_reason(), "leased by session 3");
}

TEST_F(AdminTest, PinNeedsATierThatHoldsPins) {
  v1::PinRequest request;
  request.mutable_copies()->set_model("m");
  v1::PinResponse response;
  for (v1::Tier tier : {v1::TIER_UNSPECIFIED, v1::TIER_DISK}) {
    request.mutable_copies()->set_tier(tier);
    grpc::ClientContext context;
    EXPECT_EQ(admin_->Pin(&context, request, &response).error_code(),
              grpc::StatusCode::INVALID_ARGUMENT);
  }
  EXPECT_EQ(engine_.verb<PinArgs>().calls(), 0u);
}

TEST_F(AdminTest, CancellingAWaitingPinReturnsAtOnce) {
  v1::PinRequest request;
  request.mutable_copies()->set_model("m");
  request.mutable_copies()->set_tier(v1::TIER_HOST);
  request.set_deadline_ms(3'600'000);
  v1::PinResponse response;
  grpc::ClientContext context;
  grpc::CompletionQueue queue;
  const auto call = admin_->AsyncPin(&context, request, &queue);
  grpc::Status status;
  call->Finish(&response, &status, nullptr);
  auto waiting = engine_.verb<PinArgs>().Next();
  context.TryCancel();
  void* tag;
  bool ok;
  ASSERT_TRUE(queue.Next(&tag, &ok));
  EXPECT_EQ(status.error_code(), grpc::StatusCode::CANCELLED);
  // The engine answers a call that is gone.
  engine_.Run(
      [done = std::move(waiting.done)]() mutable { done(CopyTotals()); });
}

TEST_F(AdminTest, LongErrorsAreCutToWhatTrailersCarry) {
  engine_.verb<UnpinArgs>().Answer([](auto call) {
    call.done(absl::NotFoundError(std::string(100'000, '\xc3')));
  });
  v1::UnpinRequest request;
  request.mutable_copies()->set_model("m");
  request.mutable_copies()->set_tier(v1::TIER_HOST);
  v1::UnpinResponse response;
  grpc::ClientContext context;
  const grpc::Status status = admin_->Unpin(&context, request, &response);
  EXPECT_EQ(status.error_code(), grpc::StatusCode::NOT_FOUND);
}

PlanSnapshot Streaming() {
  PlanSnapshot plan;
  plan.id = PlanId(31);
  plan.session = SessionId(4);
  plan.client_name = "worker";
  plan.model = "minilm";
  plan.device = DeviceIndex(1);
  plan.budget_bytes = 101;
  plan.resident_bytes = 102;
  plan.ring_bytes = 103;
  plan.streamed_bytes = 104;
  plan.held_bytes = 105;
  plan.groups = 6;
  plan.streamed_groups = 5;
  plan.lead = 2;
  plan.share.weight = 7;
  plan.share.priority = -3;
  plan.share.max_bytes_per_second = 108;
  plan.copied_bytes = 109;
  plan.bytes_per_second = 110;
  plan.loads = 111;
  plan.served_in_place = 112;
  plan.skipped = 113;
  plan.wasted_loads = 114;
  plan.host_waits = 115;
  plan.captured = true;
  return plan;
}

TEST_F(AdminTest, ListPlansSaysAllThatIsKnownOfEach) {
  engine_.verb<SnapshotArgs>().Answer([](auto call) {
    NodeSnapshot snapshot;
    PlanSnapshot resident;
    resident.id = PlanId(30);
    snapshot.plans = {resident, Streaming()};
    call.done(snapshot);
  });
  grpc::ClientContext context;
  v1::ListPlansResponse response;
  ASSERT_TRUE(admin_->ListPlans(&context, {}, &response).ok());
  ASSERT_EQ(response.plans_size(), 2);
  EXPECT_EQ(response.plans(0).id(), 30u);
  EXPECT_FALSE(response.plans(0).captured());
  v1::PlanStatus want;
  want.set_id(31);
  want.set_session_id(4);
  want.set_client_name("worker");
  want.set_model("minilm");
  want.set_device(1);
  want.set_budget_bytes(101);
  want.set_resident_bytes(102);
  want.set_ring_bytes(103);
  want.set_streamed_bytes(104);
  want.set_held_bytes(105);
  want.set_groups(6);
  want.set_streamed_groups(5);
  want.set_lead(2);
  want.mutable_share()->set_weight(7);
  want.mutable_share()->set_priority(-3);
  want.mutable_share()->set_max_bytes_per_second(108);
  want.set_copied_bytes(109);
  want.set_bytes_per_second(110);
  want.set_loads(111);
  want.set_served_in_place(112);
  want.set_skipped(113);
  want.set_wasted_loads(114);
  want.set_host_waits(115);
  want.set_captured(true);
  EXPECT_EQ(response.plans(1).DebugString(), want.DebugString());
  const auto* type = v1::PlanStatus::descriptor();
  for (int i = 0; i < type->field_count(); ++i) {
    EXPECT_TRUE(want.GetReflection()->HasField(want, type->field(i)))
        << type->field(i)->name() << " is new, and is not looked at here";
  }
}

TEST_F(AdminTest, ListPlansFailsAsTheEngineDoes) {
  engine_.verb<SnapshotArgs>().Answer(
      [](auto call) { call.done(absl::UnavailableError("stopping")); });
  grpc::ClientContext context;
  v1::ListPlansResponse response;
  const grpc::Status status = admin_->ListPlans(&context, {}, &response);
  EXPECT_EQ(status.error_code(), grpc::StatusCode::UNAVAILABLE);
  EXPECT_EQ(status.error_message(), "stopping");
}

class SetShareTest : public AdminTest {
 protected:
  grpc::Status SetShare(const v1::SetShareRequest& request,
                        v1::SetShareResponse* response = nullptr) {
    grpc::ClientContext context;
    v1::SetShareResponse unused;
    return admin_->SetShare(&context, request,
                            response == nullptr ? &unused : response);
  }
};

TEST_F(SetShareTest, HandsOverWhatIsNamedAndTellsWhatItDid) {
  std::vector<SetShareArgs> asked;
  engine_.verb<SetShareArgs>().Answer([&asked](auto call) {
    asked.push_back(call.args);
    ShareChanged changed;
    changed.before.weight = 5;
    changed.after.weight = 6;
    call.done(changed);
  });
  v1::SetShareRequest request;
  request.set_plan_id(31);
  v1::ShareChange& all = *request.mutable_change();
  all.set_change_weight(true);
  all.set_weight(1000);
  all.set_change_priority(true);
  all.set_priority(-10);
  all.set_change_max_bytes_per_second(true);
  all.set_max_bytes_per_second(0);
  v1::SetShareResponse response;
  ASSERT_TRUE(SetShare(request, &response).ok());
  EXPECT_EQ(response.before().weight(), 5u);
  EXPECT_EQ(response.after().weight(), 6u);
  // A value without its flag says nothing.
  all.set_change_weight(false);
  all.set_change_max_bytes_per_second(false);
  ASSERT_TRUE(SetShare(request).ok());
  ASSERT_EQ(asked.size(), 2u);
  EXPECT_EQ(asked[0].of, ShareOf(PlanId(31)));
  EXPECT_EQ(asked[0].change.weight, 1000u);
  EXPECT_EQ(asked[0].change.priority, -10);
  EXPECT_EQ(asked[0].change.max_bytes_per_second, 0u);
  EXPECT_EQ(asked[1].change.weight, std::nullopt);
  EXPECT_EQ(asked[1].change.priority, -10);
  EXPECT_EQ(asked[1].change.max_bytes_per_second, std::nullopt);
}

TEST_F(SetShareTest, IsOfAPlanOrOfADevicesLoads) {
  std::vector<SetShareArgs> asked;
  engine_.verb<SetShareArgs>().Answer([&asked](auto call) {
    asked.push_back(call.args);
    call.done(ShareChanged());
  });
  v1::SetShareRequest request;
  request.mutable_change()->set_change_max_bytes_per_second(true);
  request.mutable_change()->set_max_bytes_per_second(7);
  const grpc::Status nobody = SetShare(request);
  EXPECT_EQ(nobody.error_code(), grpc::StatusCode::INVALID_ARGUMENT);
  EXPECT_THAT(nobody.error_message(),
              HasSubstr("plan_id, permit_id or loads_of_device"));
  request.set_loads_of_device(2);
  ASSERT_TRUE(SetShare(request).ok());
  ASSERT_EQ(asked.size(), 1u);
  EXPECT_EQ(asked[0].of, ShareOf(DeviceIndex(2)));
  EXPECT_EQ(asked[0].change.max_bytes_per_second, 7u);
}

TEST_F(SetShareTest, ABadShareIsRefusedBeforeTheEngine) {
  v1::SetShareRequest request;
  request.set_plan_id(31);
  request.mutable_change()->set_change_weight(true);
  for (const uint32_t weight : {0u, 1001u}) {
    request.mutable_change()->set_weight(weight);
    const grpc::Status status = SetShare(request);
    EXPECT_EQ(status.error_code(), grpc::StatusCode::INVALID_ARGUMENT);
    EXPECT_THAT(status.error_message(),
                HasSubstr("weight is " + std::to_string(weight)));
  }
  request.clear_change();
  request.mutable_change()->set_change_priority(true);
  for (const int32_t priority : {11, -11}) {
    request.mutable_change()->set_priority(priority);
    const grpc::Status status = SetShare(request);
    EXPECT_EQ(status.error_code(), grpc::StatusCode::INVALID_ARGUMENT);
    EXPECT_THAT(status.error_message(), HasSubstr(std::to_string(priority)));
  }
  request.clear_change();
  const grpc::Status nothing = SetShare(request);
  EXPECT_EQ(nothing.error_code(), grpc::StatusCode::INVALID_ARGUMENT);
  EXPECT_THAT(nothing.error_message(), HasSubstr("nothing is to change"));
  EXPECT_EQ(engine_.verb<SetShareArgs>().calls(), 0u);
}

TEST_F(SetShareTest, APlanThatIsNotThereIsSaidSo) {
  engine_.verb<SetShareArgs>().Answer(
      [](auto call) { call.done(absl::NotFoundError("no plan 31")); });
  v1::SetShareRequest request;
  request.set_plan_id(31);
  request.mutable_change()->set_change_priority(true);
  const grpc::Status status = SetShare(request);
  EXPECT_EQ(status.error_code(), grpc::StatusCode::NOT_FOUND);
  EXPECT_EQ(status.error_message(), "no plan 31");
}

class LoadTest : public AdminTest {
 protected:
  void SetUp() override {
    std::filesystem::create_directory(dir_.path() + "/tiny");
    std::ofstream(dir_.path() + "/tiny/model.safetensors") << "bytes";
    RpcOptions options;
    options.model_roots = {dir_.path()};
    Serve(options);
    request_.set_path(dir_.path() + "/tiny");
  }
  v1::LoadRequest request_;
};

TEST_F(LoadTest, RegistersOpenFilesThenTellsProgressAndTheModel) {
  engine_.verb<RegisterModelArgs>().Answer([](auto call) {
    EXPECT_EQ(call.args.name, "tiny");
    ASSERT_EQ(call.args.shards.size(), 1u);
    EXPECT_EQ(call.args.shards[0].name, "model.safetensors");
    EXPECT_TRUE(call.args.shards[0].fd.valid());
    EXPECT_FALSE(call.args.index.has_value());
    ASSERT_EQ(call.args.joined.size(), 1u);
    EXPECT_EQ(call.args.joined[0].name, "x");
    call.done(MakeModel("tiny", {"a", "b"}));
  });
  engine_.verb<LoadArgs>().Answer([](auto call) {
    EXPECT_TRUE(call.args.to == OnHost());
    LoadProgress progress;
    progress.total_groups = 1000;
    for (uint32_t i = 1; i <= 1000; ++i) {
      progress.done_groups = i;
      call.args.progress(progress);
    }
    call.done(progress);
  });
  request_.add_joined()->set_name("x");
  grpc::ClientContext context;
  const auto stream = admin_->Load(&context, request_);
  v1::LoadProgress message;
  uint32_t last = 0;
  int with_model = 0;
  while (stream->Read(&message)) {
    EXPECT_GE(message.done_groups(), last);
    last = message.done_groups();
    EXPECT_EQ(with_model, 0) << "nothing follows the last message";
    if (message.has_model()) ++with_model;
  }
  EXPECT_TRUE(stream->Finish().ok());
  EXPECT_EQ(last, 1000u);
  EXPECT_EQ(with_model, 1);
  EXPECT_EQ(message.model().name(), "tiny");
  engine_.WaitUntilClosed(size_t{1});
}

TEST_F(LoadTest, RefusalsOfEachStepReachTheCaller) {
  v1::LoadProgress message;
  {
    engine_.verb<RegisterModelArgs>().Answer(
        [](auto call) { call.done(absl::DataLossError("truncated")); });
    grpc::ClientContext context;
    const auto stream = admin_->Load(&context, request_);
    EXPECT_FALSE(stream->Read(&message));
    EXPECT_EQ(stream->Finish().error_code(), grpc::StatusCode::DATA_LOSS);
  }
  {
    v1::LoadRequest outside = request_;
    outside.set_path("/etc");
    grpc::ClientContext context;
    const auto stream = admin_->Load(&context, outside);
    EXPECT_EQ(stream->Finish().error_code(),
              grpc::StatusCode::PERMISSION_DENIED);
  }
  {
    v1::LoadRequest to_disk = request_;
    to_disk.set_tier(v1::TIER_DISK);
    grpc::ClientContext context;
    const auto stream = admin_->Load(&context, to_disk);
    EXPECT_EQ(stream->Finish().error_code(),
              grpc::StatusCode::INVALID_ARGUMENT);
  }
}

class DrainTest : public AdminTest {
 protected:
  void SetUp() override {
    AdminTest::SetUp();
    engine_.verb<SetDrainingArgs>().Answer([this](auto call) {
      draining_ = call.args.draining;
      call.done(absl::OkStatus());
    });
  }
  bool draining_ = false;
};

TEST_F(DrainTest, WaitsUntilTheLeasesAreGone) {
  v1::DrainRequest request;
  request.set_deadline_ms(600'000);
  grpc::ClientContext context;
  const auto stream = admin_->Drain(&context, request);
  auto first = engine_.verb<SnapshotArgs>().Next();
  NodeSnapshot snapshot;
  snapshot.sessions = {Holding(1, 2), Holding(2, 0)};
  engine_.Run(
      [done = std::move(first.done), snapshot]() mutable { done(snapshot); });
  v1::DrainProgress progress;
  ASSERT_TRUE(stream->Read(&progress));
  EXPECT_EQ(progress.leases(), 2u);
  EXPECT_FALSE(progress.drained());
  ASSERT_EQ(progress.holders_size(), 1);
  EXPECT_EQ(progress.holders(0).id(), 1u);
  auto second = engine_.verb<SnapshotArgs>().Next();
  engine_.Run(
      [done = std::move(second.done)]() mutable { done(NodeSnapshot()); });
  ASSERT_TRUE(stream->Read(&progress));
  EXPECT_TRUE(progress.drained());
  EXPECT_FALSE(stream->Read(&progress));
  EXPECT_TRUE(stream->Finish().ok());
  EXPECT_TRUE(draining_);
}

TEST_F(DrainTest, DeadlineSaysWhoHoldsWhat) {
  engine_.verb<SnapshotArgs>().Answer([](auto call) {
    NodeSnapshot snapshot;
    snapshot.sessions = {Holding(41, 2)};
    call.done(snapshot);
  });
  grpc::ClientContext context;
  const auto stream = admin_->Drain(&context, v1::DrainRequest());
  v1::DrainProgress progress;
  while (stream->Read(&progress)) {
  }
  const grpc::Status status = stream->Finish();
  EXPECT_EQ(status.error_code(), grpc::StatusCode::DEADLINE_EXCEEDED);
  EXPECT_THAT(status.error_message(), HasSubstr("session 41"));
}

TEST_F(DrainTest, ResumeTakesItBack) {
  draining_ = true;
  engine_.verb<SnapshotArgs>().Answer(
      [](auto call) { call.done(NodeSnapshot()); });
  v1::DrainRequest request;
  request.set_resume(true);
  grpc::ClientContext context;
  const auto stream = admin_->Drain(&context, request);
  v1::DrainProgress progress;
  EXPECT_TRUE(stream->Read(&progress));
  EXPECT_FALSE(progress.drained());
  EXPECT_TRUE(stream->Finish().ok());
  EXPECT_FALSE(draining_);
}

TEST_F(AdminTest, WatchGivesEventsInOrderAndEndsItsSubscription) {
  grpc::ClientContext context;
  const auto stream = admin_->Watch(&context, v1::WatchRequest());
  // The subscription is there once an event comes through.
  NodeEvent event;
  event.kind = EventKind::kPlanSet;
  v1::Event got;
  while (engine_.subscribers() == 0) std::this_thread::yield();
  engine_.Emit(event);
  event.kind = EventKind::kCopyPresent;
  event.at = OnDevice(DeviceIndex(1));
  engine_.Emit(event);
  ASSERT_TRUE(stream->Read(&got));
  EXPECT_EQ(got.kind(), "plan-set");
  EXPECT_GT(got.at_unix_ms(), 0u);
  ASSERT_TRUE(stream->Read(&got));
  EXPECT_EQ(got.kind(), "copy-present");
  EXPECT_EQ(got.device(), 1u);
  context.TryCancel();
  EXPECT_EQ(stream->Finish().error_code(), grpc::StatusCode::CANCELLED);
  while (engine_.subscribers() != 0) std::this_thread::yield();
}

TEST_F(AdminTest, SlowWatcherIsToldHowManyItMissed) {
  grpc::ClientContext context;
  const auto stream = admin_->Watch(&context, v1::WatchRequest());
  while (engine_.subscribers() == 0) std::this_thread::yield();
  // Far more than HTTP/2's windows and the queue take while nobody reads.
  constexpr int kEvents = 6000;
  NodeEvent event;
  event.kind = EventKind::kPlanSet;
  event.detail = std::string(16 * 1024, 'x');
  for (int i = 0; i < kEvents; ++i) {
    event.group = std::to_string(i);
    engine_.Emit(event);
  }
  absl::Mutex mu;
  bool emitted = false;
  engine_.Run([&] {
    absl::MutexLock lock(&mu);
    emitted = true;
  });
  {
    absl::MutexLock lock(&mu);
    mu.Await(absl::Condition(&emitted));
  }
  v1::Event got;
  int read = 0;
  while (stream->Read(&got) && got.kind() != "missed") {
    EXPECT_EQ(got.group(), std::to_string(read));
    ++read;
  }
  ASSERT_EQ(got.kind(), "missed");
  EXPECT_THAT(got.detail(),
              HasSubstr(std::to_string(kEvents - read) + " events"));
  event.kind = EventKind::kPlanEnded;
  engine_.Emit(event);
  ASSERT_TRUE(stream->Read(&got));
  EXPECT_EQ(got.kind(), "plan-ended");
  context.TryCancel();
}

}  // namespace hoistd::admin_test
