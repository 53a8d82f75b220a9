#ifndef HOIST_TESTS_COMPONENT_SESSION_SESSION_FIXTURE_H_
#define HOIST_TESTS_COMPONENT_SESSION_SESSION_FIXTURE_H_

#include <fcntl.h>
#include <unistd.h>

#include <memory>
#include <optional>
#include <string>
#include <utility>

#include "daemon/session/session_server.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "hoist/shared/packet_socket.h"
#include "tests/support/fake_engine.h"
#include "tests/support/raw_session.h"
#include "tests/support/status_matchers.h"
#include "tests/support/temp_dir.h"

namespace hoistd::testing {

inline NodeFacts FakeFacts() {
  NodeFacts facts;
  facts.version = "1.2.3";
  DeviceView device;
  device.info.name = "emulated";
  device.info.span_bytes = uint64_t{1} << 40;
  device.pool_bytes = uint64_t{8} << 30;
  device.slab_bytes = uint64_t{256} << 20;
  facts.devices.push_back(device);
  return facts;
}

// A server over a scripted engine. TearDown checks that no descriptor is left.
class SessionFixture : public ::testing::Test {
 protected:
  void SetUp() override {
    fds_before_ = OpenFdCount();
    Start();
  }

  void Start() {
    options_.socket.path = dir_ / "hoistd.sock";
    options_.instance_id.fill(7);
    SessionServerOptions options;
    options.socket = options_.socket;
    options.max_sessions = options_.max_sessions;
    options.max_request_bytes = options_.max_request_bytes;
    options.silent = options_.silent;
    options.clock = options_.clock;
    options.connection = options_.connection;
    options.instance_id = options_.instance_id;
    options.keeps = options_.keeps;
    options.resumed = options_.resumed;
    options.generation = options_.generation;
    ASSERT_OK_AND_ASSIGN(server_,
                         SessionServer::Create(std::move(options), *engine_));
  }

  void TearDown() override {
    if (server_ != nullptr) server_->Shutdown();
    // The engine ends first, and drops its references for tests.
    engine_.reset();
    server_.reset();
    EXPECT_EQ(OpenFdCount(), fds_before_) << "descriptors leaked";
  }

  std::string path() const { return options_.socket.path; }
  FakeEngine& engine() { return *engine_; }

  // A round trip on a separate session: the session thread's earlier work is
  // done.
  void Settle() {
    RawSession other(path());
    ASSERT_TRUE(other.valid());
    ASSERT_EQ(other.Open("settle").message.code(), 0);
    hoist::v1::ClientMessage unknown;
    ASSERT_NE(other.Call(unknown).message.code(), 0);
  }

  // A round trip on an open session, answered by the engine: its reply goes
  // through the mailbox, so all earlier posts are delivered. A request answered
  // by the session thread itself is not enough, since its socket may be read
  // before the mailbox.
  void Barrier(RawSession& client) {
    hoist::v1::ClientMessage message;
    message.mutable_describe_model()->set_name("barrier");
    ASSERT_TRUE(client.Send(message));
    engine().verb<DescribeModelArgs>().Next().done(
        absl::NotFoundError("a barrier"));
    ASSERT_TRUE(client.Receive().has_value());
  }

  TempDir dir_;
  SessionServerOptions options_;  // Of Start; not `listen_fd`.
  std::unique_ptr<FakeEngine> engine_ =
      std::make_unique<FakeEngine>(FakeFacts());
  std::unique_ptr<SessionServer> server_;

 private:
  size_t fds_before_ = 0;
};

inline hoist::v1::ClientMessage StageMessage(uint64_t request_id) {
  hoist::v1::ClientMessage message;
  message.set_request_id(request_id);
  message.mutable_stage()->set_model_id(3);
  message.mutable_stage()->set_group(4);
  message.mutable_stage()->set_deadline_ms(250);
  return message;
}

inline hoist::v1::ClientMessage DescribeMessage(uint64_t request_id) {
  hoist::v1::ClientMessage message;
  message.set_request_id(request_id);
  message.mutable_describe_model()->set_name("minilm");
  return message;
}

inline hoist::UniqueFd DevNull() {
  return hoist::UniqueFd(open("/dev/null", O_RDONLY | O_CLOEXEC));
}

// A memfd of `bytes` zeros, sealed against all changes.
inline hoist::UniqueFd SealedMemfd(uint64_t bytes) {
  hoist::Result<hoist::UniqueFd> fd = hoist::CreateMemfd("image", bytes);
  HOIST_CHECK(fd.ok() && hoist::SealMemfd(fd->get()).ok());
  return std::move(fd).value();
}

// A memfd of `bytes` bytes, like a client's for an image.
inline hoist::UniqueFd TargetMemfd(uint64_t bytes) {
  hoist::Result<hoist::UniqueFd> fd = hoist::CreateMemfd("target", bytes);
  HOIST_CHECK(fd.ok());
  HOIST_CHECK(fallocate(fd->get(), 0, 0, static_cast<off_t>(bytes)) == 0);
  HOIST_CHECK(fcntl(fd->get(), F_ADD_SEALS, F_SEAL_GROW | F_SEAL_SHRINK) == 0);
  return std::move(fd).value();
}

inline hoist::v1::ClientMessage ReadImageMessage(uint64_t request_id) {
  hoist::v1::ClientMessage message;
  message.set_request_id(request_id);
  message.mutable_read_image()->set_model_id(3);
  message.mutable_read_image()->set_group(4);
  message.mutable_read_image()->set_deadline_ms(250);
  return message;
}

// A model of one group with `tensors` tensors, as an engine gives it.
inline ModelPtr ModelOf(uint64_t id, int tensors) {
  auto group = std::make_shared<Group>();
  group->name = "layer.0";
  group->image_bytes = 4096;
  for (int i = 0; i < tensors; ++i) {
    Tensor tensor;
    tensor.name = "layer.0.block.of.a.long.name." + std::to_string(i);
    tensor.dtype = hoist::DType::kU8;
    tensor.shape = {1};
    tensor.bytes = 1;
    group->tensors.push_back(std::move(tensor));
  }
  auto spec = std::make_shared<ModelSpec>();
  spec->name = "minilm";
  spec->groups.push_back(std::move(group));
  spec->image_bytes = 4096;
  auto model = std::make_shared<Model>();
  model->id = ModelId(id);
  model->spec = std::move(spec);
  return model;
}

}  // namespace hoistd::testing

#endif  // HOIST_TESTS_COMPONENT_SESSION_SESSION_FIXTURE_H_
