#include <fstream>
#include <string>
#include <vector>

#include "daemon/rpc/admin_service.h"
#include "gmock/gmock.h"
#include "grpcpp/server_builder.h"
#include "gtest/gtest.h"
#include "tests/unit/rpc/lent_books.h"
#include "tests/unit/rpc/rpc_fixture.h"

namespace hoistd::admin_test {

using ::hoistd::testing::LentBooks;
using ::hoistd::testing::MakeModel;
using ::hoistd::testing::NodeRig;
using ::hoistd::testing::RpcTest;
using ::testing::HasSubstr;
namespace v1 = hoist::v1;

class AdminTest : public RpcTest {};

TEST_F(AdminTest, StatusIsFactsNotesAndBooks) {
  LentBooks books;
  books.rig.Open(1);
  books.LendTo(engine_);
  grpc::ClientContext context;
  v1::NodeStatus status;
  ASSERT_TRUE(admin_->Status(&context, {}, &status).ok());
  EXPECT_EQ(status.version(), "1.2.3");
  EXPECT_EQ(status.io().engine(), "threads");
  EXPECT_EQ(status.notes(0), "a note");
  EXPECT_EQ(status.dropped_notes(), 2u);
  EXPECT_EQ(status.sessions(), 1u);
}

TEST_F(AdminTest, ModelsAndGroupsAreTheBooks) {
  LentBooks books;
  books.rig.AddModel(books.rig.Open(1000), "m", {1, 1});
  books.LendTo(engine_);
  grpc::ClientContext of_models, of_groups, of_none;
  v1::ListModelsResponse models;
  ASSERT_TRUE(admin_->ListModels(&of_models, {}, &models).ok());
  EXPECT_EQ(models.models(0).name(), "m");
  v1::ListGroupsRequest request;
  v1::ListGroupsResponse groups;
  request.set_model("1000:m");
  ASSERT_TRUE(admin_->ListGroups(&of_groups, request, &groups).ok());
  EXPECT_EQ(groups.groups_size(), 2);
  request.set_model("x");
  EXPECT_EQ(admin_->ListGroups(&of_none, request, &groups).error_code(),
            grpc::StatusCode::NOT_FOUND);
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

TEST_F(AdminTest, ListPlansFailsAsTheEngineDoes) {
  engine_.verb<LookArgs>().Answer(
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
  // The session with two leases.
  static SessionId HoldTwice(NodeRig& rig) {
    const SessionId session = rig.Open(1);
    const ModelId model = rig.AddModel(session, "m", {1, 1});
    rig.StageNow(session, {model, GroupIndex(0)});
    rig.StageNow(session, {model, GroupIndex(1)});
    return session;
  }
  bool draining_ = false;
};

TEST_F(DrainTest, WaitsUntilTheLeasesAreGone) {
  LentBooks books;
  const SessionId holder = HoldTwice(books.rig);
  books.rig.Open(2);
  v1::DrainRequest request;
  request.set_deadline_ms(600'000);
  grpc::ClientContext context;
  const auto stream = admin_->Drain(&context, request);
  auto first = engine_.verb<LookArgs>().Next();
  engine_.Run([&] { books.Answer(first); });
  v1::DrainProgress progress;
  ASSERT_TRUE(stream->Read(&progress));
  EXPECT_EQ(progress.leases(), 2u);
  EXPECT_FALSE(progress.drained());
  ASSERT_EQ(progress.holders_size(), 1);
  EXPECT_EQ(progress.holders(0).id(), holder.number());
  auto second = engine_.verb<LookArgs>().Next();
  books.rig.Close(holder);
  engine_.Run([&] { books.Answer(second); });
  ASSERT_TRUE(stream->Read(&progress));
  EXPECT_TRUE(progress.drained());
  EXPECT_FALSE(stream->Read(&progress));
  EXPECT_TRUE(stream->Finish().ok());
  EXPECT_TRUE(draining_);
}

TEST_F(DrainTest, DeadlineSaysWhoHoldsWhat) {
  LentBooks books;
  const SessionId holder = HoldTwice(books.rig);
  books.LendTo(engine_);
  grpc::ClientContext context;
  const auto stream = admin_->Drain(&context, v1::DrainRequest());
  v1::DrainProgress progress;
  while (stream->Read(&progress)) {
  }
  const grpc::Status status = stream->Finish();
  EXPECT_EQ(status.error_code(), grpc::StatusCode::DEADLINE_EXCEEDED);
  EXPECT_THAT(status.error_message(),
              HasSubstr("session " + std::to_string(holder.number())));
}

TEST_F(DrainTest, ResumeTakesItBack) {
  draining_ = true;
  LentBooks books;
  books.LendTo(engine_);
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
