#include <fcntl.h>
#include <unistd.h>

#include <fstream>
#include <string>
#include <vector>

#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "hoist/shared/packet_socket.h"
#include "hoist/shared/unique_fd.h"
#include "tests/unit/rpc/rpc_fixture.h"

namespace hoistd::worker_test {

using ::hoistd::testing::MakeModel;
using ::hoistd::testing::RpcTest;
using ::testing::Each;
using ::testing::ElementsAre;
using ::testing::HasSubstr;
namespace v1 = hoist::v1;

class WorkerTest : public RpcTest {
 protected:
  using RpcTest::RpcTest;
  void SetUp() override {
    RpcTest::SetUp();
    engine_.verb<DescribeModelArgs>().Answer([](auto call) {
      call.done(MakeModel("m", {"a", "b"}));
    });
  }

  static v1::WorkerStageRequest StageOf(const std::string& group) {
    v1::WorkerStageRequest request;
    request.set_model("m");
    request.set_group(group);
    request.set_deadline_ms(60'000);
    return request;
  }
};

class CudaWorkerTest : public WorkerTest {
 protected:
  CudaWorkerTest() : WorkerTest(DeviceKind::kCuda) {}
};

TEST_F(WorkerTest, CallsAreSessionsOfWhoTheKernelSays) {
  grpc::ClientContext context;
  v1::WorkerDescribeModelRequest request;
  request.set_name("m");
  v1::Model model;
  Peer peer;
  engine_.verb<OpenSessionArgs>().Answer([&](auto call) {
    peer = call.args.peer;
    call.done(engine_.NewSession());
  });
  ASSERT_TRUE(worker_->DescribeModel(&context, request, &model).ok());
  EXPECT_EQ(peer.uid.number(), getuid());
  EXPECT_EQ(peer.pid, getpid());
  EXPECT_EQ(peer.via, "grpc");
  EXPECT_EQ(model.groups_size(), 2);
  EXPECT_EQ(model.groups(1).name(), "b");
  engine_.WaitUntilClosed(size_t{1});
}

TEST_F(WorkerTest, LeaseLivesUntilTheStreamIsCancelled) {
  hoist::Result<hoist::UniqueFd> memory = hoist::CreateMemfd("slab", 4096);
  ASSERT_TRUE(memory.ok());
  ASSERT_EQ(pwrite(memory->get(), "weights", 7, 0), 7);
  SessionId session;
  engine_.verb<StageArgs>().Answer([&](auto call) {
    session = call.session;
    EXPECT_EQ(call.args.key.group, GroupIndex(1));
    EXPECT_FALSE(call.args.shared);
    LeaseGrant grant;
    grant.id = LeaseId(5);
    grant.key = call.args.key;
    grant.bytes = 4096;
    SlabUse use;
    use.slab.bytes = 4096;
    use.share.fd = memory->get();
    grant.new_slabs.push_back(use);
    call.done(std::move(grant));
  });
  grpc::ClientContext context;
  const auto stream = worker_->Stage(&context, StageOf("b"));
  v1::WorkerStageResponse response;
  ASSERT_TRUE(stream->Read(&response));
  EXPECT_EQ(response.lease().id(), 5u);
  EXPECT_EQ(response.group().name(), "b");
  EXPECT_EQ(response.group().index(), 1u);
  ASSERT_EQ(response.lease().slabs_size(), 1);
  const hoist::UniqueFd opened(
      open(response.lease().slabs(0).path().c_str(), O_RDONLY | O_CLOEXEC));
  char bytes[8] = {};
  ASSERT_EQ(pread(opened.get(), bytes, 7, 0), 7);
  EXPECT_STREQ(bytes, "weights");
  EXPECT_EQ(engine_.open_sessions(), 1u);

  context.TryCancel();
  engine_.WaitUntilClosed(session);
  EXPECT_EQ(stream->Finish().error_code(), grpc::StatusCode::CANCELLED);
}

TEST_F(WorkerTest, CancellingAWaitingStageClosesItsSession) {
  grpc::ClientContext context;
  const auto stream = worker_->Stage(&context, StageOf("a"));
  auto waiting = engine_.verb<StageArgs>().Next();
  context.TryCancel();
  engine_.WaitUntilClosed(waiting.session);
  // The engine's answer comes too late, for nobody.
  engine_.Run([done = std::move(waiting.done)]() mutable {
    done(absl::NotFoundError("no such session"));
  });
  EXPECT_EQ(stream->Finish().error_code(), grpc::StatusCode::CANCELLED);
}

TEST_F(WorkerTest, CancellingBeforeTheSessionIsOpenClosesItOnceItIs) {
  engine_.verb<OpenSessionArgs>().Answer(nullptr);
  grpc::ClientContext context;
  const auto stream = worker_->Stage(&context, StageOf("a"));
  auto opening = engine_.verb<OpenSessionArgs>().Next();
  context.TryCancel();
  EXPECT_EQ(stream->Finish().error_code(), grpc::StatusCode::CANCELLED);
  // The server may hear of it later than the client does.
  engine_.verb<DescribeModelArgs>().Answer(
      [](auto call) { call.done(absl::NotFoundError("closed")); });
  const SessionId session = engine_.NewSession();
  engine_.Run(
      [done = std::move(opening.done), session]() mutable { done(session); });
  engine_.WaitUntilClosed(session);
}

TEST_F(WorkerTest, LosingTheConnectionEndsTheLease) {
  engine_.verb<StageArgs>().Answer([](auto call) {
    LeaseGrant grant;
    grant.key = call.args.key;
    call.done(std::move(grant));
  });
  auto channel = NewChannel();
  auto stub = v1::Worker::NewStub(channel);
  {
    grpc::ClientContext context;
    auto stream = stub->Stage(&context, StageOf("a"));
    v1::WorkerStageResponse response;
    ASSERT_TRUE(stream->Read(&response));
    EXPECT_EQ(engine_.open_sessions(), 1u);
  }
  stub.reset();
  channel.reset();
  engine_.WaitUntilClosed(size_t{1});
}

TEST_F(WorkerTest, DeadlineOfTheCallBoundsTheStages) {
  grpc::ClientContext context;
  context.set_deadline(std::chrono::system_clock::now() +
                       std::chrono::seconds(20));
  const auto stream = worker_->Stage(&context, StageOf("a"));
  auto waiting = engine_.verb<StageArgs>().Next();
  // gRPC sends it rounded; the request itself asks for 60 s.
  EXPECT_LT(waiting.args.deadline, absl::Seconds(30));
  EXPECT_GT(waiting.args.deadline, absl::ZeroDuration());
  engine_.Run([done = std::move(waiting.done)]() mutable {
    done(absl::ResourceExhaustedError("full"));
  });
  const grpc::Status status = stream->Finish();
  EXPECT_EQ(status.error_code(), grpc::StatusCode::RESOURCE_EXHAUSTED);
  EXPECT_EQ(status.error_message(), "full");
  engine_.WaitUntilClosed(waiting.session);
}

TEST_F(WorkerTest, UnknownGroupIsNotFoundAndLeavesNoSession) {
  grpc::ClientContext context;
  const auto stream = worker_->Stage(&context, StageOf("zzz"));
  const grpc::Status status = stream->Finish();
  EXPECT_EQ(status.error_code(), grpc::StatusCode::NOT_FOUND);
  EXPECT_THAT(status.error_message(), HasSubstr("zzz"));
  engine_.WaitUntilClosed(size_t{1});
  EXPECT_EQ(engine_.verb<StageArgs>().calls(), 0u);
}

TEST_F(CudaWorkerTest, StagesInIpcSlabs) {
  engine_.verb<StageArgs>().Answer([](auto call) {
    EXPECT_TRUE(call.args.shared);
    LeaseGrant grant;
    grant.key = call.args.key;
    SlabUse use;
    use.share.backing = Backing::kIpc;
    use.share.ipc_handle.fill(0x5a);
    grant.new_slabs.push_back(use);
    call.done(std::move(grant));
  });
  grpc::ClientContext context;
  const auto stream = worker_->Stage(&context, StageOf("a"));
  v1::WorkerStageResponse response;
  ASSERT_TRUE(stream->Read(&response));
  ASSERT_EQ(response.lease().slabs_size(), 1);
  EXPECT_EQ(response.lease().slabs(0).backing(), v1::BACKING_IPC);
  EXPECT_EQ(response.lease().slabs(0).ipc_handle(), std::string(64, 0x5a));
  EXPECT_EQ(response.lease().slabs(0).path(), "");
}

TEST_F(WorkerTest, PrefetchOfNoGroupsIsOfAll) {
  std::vector<GroupIndex> groups;
  engine_.verb<PrefetchArgs>().Answer([&](auto call) {
    groups = call.args.groups;
    call.done(absl::OkStatus());
  });
  v1::WorkerPrefetchRequest request;
  request.set_model("m");
  request.set_tier(v1::TIER_HOST);
  v1::WorkerPrefetchResponse response;
  grpc::ClientContext all;
  ASSERT_TRUE(worker_->Prefetch(&all, request, &response).ok());
  EXPECT_THAT(groups, ElementsAre(GroupIndex(0), GroupIndex(1)));
  request.add_groups("b");
  grpc::ClientContext one;
  ASSERT_TRUE(worker_->Prefetch(&one, request, &response).ok());
  EXPECT_THAT(groups, ElementsAre(GroupIndex(1)));
  request.set_tier(v1::TIER_DISK);
  grpc::ClientContext disk;
  EXPECT_EQ(worker_->Prefetch(&disk, request, &response).error_code(),
            grpc::StatusCode::INVALID_ARGUMENT);
}

class PublishTest : public WorkerTest {
 protected:
  // Sends the header (4 KiB image) and `chunks`.
  grpc::Status Publish(const std::vector<std::string>& chunks,
                       bool with_header = true, uint64_t deadline_ms = 0,
                       const std::string& content = "") {
    grpc::ClientContext context;
    v1::Model model;
    const auto stream = worker_->Publish(&context, &model);
    v1::WorkerPublishRequest part;
    part.mutable_header()->set_model("m");
    part.mutable_header()->mutable_group()->set_name("g");
    part.mutable_header()->mutable_group()->set_image_bytes(4096);
    part.mutable_header()->set_deadline_ms(deadline_ms);
    part.mutable_header()->set_content(content);
    if (with_header) stream->Write(part);
    for (const std::string& chunk : chunks) {
      part.set_chunk(chunk);
      if (!stream->Write(part)) break;
    }
    stream->WritesDone();
    return stream->Finish();
  }
};

TEST_F(PublishTest, ImageArrivesWholeAndSealed) {
  std::string image;
  int seals = 0;
  engine_.verb<PublishArgs>().Answer([&](auto call) {
    image.resize(4096);
    EXPECT_EQ(pread(call.args.image.get(), image.data(), 4096, 0), 4096);
    seals = fcntl(call.args.image.get(), F_GET_SEALS);
    call.done(MakeModel("m", {"g"}));
  });
  const grpc::Status status =
      Publish({std::string(1000, 'a'), std::string(3096, 'b')});
  ASSERT_TRUE(status.ok()) << status.error_message();
  EXPECT_EQ(image, std::string(1000, 'a') + std::string(3096, 'b'));
  EXPECT_NE(seals & F_SEAL_WRITE, 0);
  EXPECT_NE(seals & F_SEAL_SHRINK, 0);
  engine_.WaitUntilClosed(size_t{1});
}

TEST_F(PublishTest, WithoutADeadlineItIsAMinute) {
  std::vector<absl::Duration> deadlines;
  engine_.verb<PublishArgs>().Answer([&](auto call) {
    deadlines.push_back(call.args.deadline);
    call.done(MakeModel("m", {"g"}));
  });
  EXPECT_TRUE(Publish({std::string(4096, 'a')}).ok());
  EXPECT_TRUE(Publish({std::string(4096, 'a')}, true, 250).ok());
  EXPECT_THAT(deadlines,
              ElementsAre(absl::Seconds(60), absl::Milliseconds(250)));
}

TEST_F(PublishTest, WhatItMustBeReachesTheEngine) {
  std::vector<bool> said;
  engine_.verb<PublishArgs>().Answer([&](auto call) {
    said.push_back(call.args.expected.has_value());
    if (said.back()) {
      EXPECT_THAT(*call.args.expected, Each(0x5a));
    }
    call.done(MakeModel("m", {"g"}));
  });
  const std::string image(4096, 'a');
  EXPECT_TRUE(Publish({image}).ok());
  EXPECT_TRUE(Publish({image}, true, 0, std::string(32, 0x5a)).ok());
  EXPECT_THAT(said, ElementsAre(false, true));
  const grpc::Status status = Publish({image}, true, 0, std::string(31, 0x5a));
  EXPECT_EQ(status.error_code(), grpc::StatusCode::INVALID_ARGUMENT);
  EXPECT_THAT(status.error_message(), HasSubstr("SHA-256, of 32"));
  EXPECT_EQ(engine_.verb<PublishArgs>().calls(), 2u);
}

TEST_F(PublishTest, OtherLengthsThanTheHeaderSaysAreRefused) {
  grpc::Status status = Publish({std::string(4097, 'a')});
  EXPECT_EQ(status.error_code(), grpc::StatusCode::INVALID_ARGUMENT);
  EXPECT_THAT(status.error_message(), HasSubstr("more bytes"));
  status = Publish({std::string(4095, 'a')});
  EXPECT_EQ(status.error_code(), grpc::StatusCode::INVALID_ARGUMENT);
  EXPECT_THAT(status.error_message(), HasSubstr("4095 of 4096"));
  status = Publish({"x"}, /*with_header=*/false);
  EXPECT_EQ(status.error_code(), grpc::StatusCode::INVALID_ARGUMENT);
  EXPECT_EQ(engine_.verb<PublishArgs>().calls(), 0u);
}

TEST_F(PublishTest, ImagesOnTheirWayAreBoundedTogether) {
  RpcOptions options;
  options.max_publish_bytes = 6000;
  Serve(options);
  grpc::Status first;
  std::thread publisher([&] { first = Publish({std::string(4096, 'x')}); });
  auto waiting = engine_.verb<PublishArgs>().Next();
  const grpc::Status second = Publish({std::string(4096, 'y')});
  EXPECT_EQ(second.error_code(), grpc::StatusCode::RESOURCE_EXHAUSTED);
  EXPECT_THAT(second.error_message(), HasSubstr("4096 bytes of others"));
  engine_.Run([done = std::move(waiting.done)]() mutable {
    done(MakeModel("m", {"g"}));
  });
  publisher.join();
  EXPECT_TRUE(first.ok());
  // All is given back, if perhaps after the caller has its answer.
  engine_.verb<PublishArgs>().Answer(
      [](auto call) { call.done(MakeModel("m", {"g"})); });
  while (!Publish({std::string(4096, 'z')}).ok()) std::this_thread::yield();
}

TEST_F(WorkerTest, JoinedTensorsReachTheEngine) {
  const testing::TempDir folder;
  std::ofstream(folder.path() + "/model.safetensors") << "bytes";
  RpcOptions options;
  options.model_roots = {folder.path()};
  Serve(options);
  engine_.verb<RegisterModelArgs>().Answer([](auto call) {
    ASSERT_EQ(call.args.joined.size(), 1u);
    EXPECT_EQ(call.args.joined[0].name, "x");
    ASSERT_EQ(call.args.joined[0].parts.size(), 1u);
    EXPECT_EQ(call.args.joined[0].parts[0].tensor, "a");
    EXPECT_EQ(call.args.joined[0].parts[0].offset, 8u);
    call.done(MakeModel("m", {"g"}));
  });
  v1::WorkerRegisterModelRequest request;
  request.set_name("m");
  request.set_path(folder.path());
  v1::JoinedTensor* joined = request.add_joined();
  joined->set_name("x");
  joined->add_parts()->set_tensor("a");
  joined->mutable_parts(0)->set_offset_bytes(8);
  v1::Model model;
  grpc::ClientContext context;
  const grpc::Status status = worker_->RegisterModel(&context, request, &model);
  EXPECT_TRUE(status.ok()) << status.error_message();
  EXPECT_EQ(engine_.verb<RegisterModelArgs>().calls(), 1u);
}

TEST_F(WorkerTest, RegisterByPathNeedsModelRoots) {
  v1::WorkerRegisterModelRequest request;
  request.set_name("m");
  request.set_path("/etc/passwd");
  v1::Model model;
  grpc::ClientContext context;
  const grpc::Status status = worker_->RegisterModel(&context, request, &model);
  EXPECT_EQ(status.error_code(), grpc::StatusCode::FAILED_PRECONDITION);
  EXPECT_THAT(status.error_message(), HasSubstr("models.roots"));
}

}  // namespace hoistd::worker_test
