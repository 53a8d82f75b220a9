// A server over the scripted engine, and its client.
#ifndef HOIST_TESTS_UNIT_RPC_RPC_FIXTURE_H_
#define HOIST_TESTS_UNIT_RPC_RPC_FIXTURE_H_

#include <stdlib.h>

#include <filesystem>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "daemon/model/model.h"
#include "daemon/rpc/rpc_server.h"
#include "grpcpp/grpcpp.h"
#include "gtest/gtest.h"
#include "hoist/v1/admin.grpc.pb.h"
#include "hoist/v1/worker.grpc.pb.h"
#include "tests/support/fake_engine.h"
#include "tests/support/status_matchers.h"

namespace hoistd::testing {

namespace v1 = hoist::v1;

// A directory that is removed with the object.
class TempDir {
 public:
  TempDir() {
    std::string pattern = "/tmp/hoist-rpc-XXXXXX";
    if (mkdtemp(pattern.data()) != nullptr) path_ = pattern;
  }
  ~TempDir() {
    std::error_code ignored;
    if (!path_.empty()) std::filesystem::remove_all(path_, ignored);
  }
  const std::string& path() const { return path_; }

 private:
  std::string path_;
};

inline NodeFacts FactsWith(DeviceKind kind) {
  NodeFacts facts;
  facts.version = "1.2.3";
  DeviceView device;
  device.info.name = "a device";
  device.info.kind = kind;
  device.pool_bytes = 1 << 20;
  facts.devices.push_back(device);
  facts.io.engine = "threads";
  return facts;
}

// `groups` of 4 KiB, with one tensor "w" each.
inline ModelPtr MakeModel(const std::string& name,
                          const std::vector<std::string>& groups) {
  auto spec = std::make_shared<ModelSpec>();
  spec->name = name;
  for (const std::string& group_name : groups) {
    auto group = std::make_shared<Group>();
    group->name = group_name;
    group->image_bytes = 4096;
    Tensor tensor;
    tensor.name = "w";
    tensor.dtype = hoist::DType::kF32;
    tensor.shape = {1024};
    tensor.bytes = 4096;
    group->tensors.push_back(tensor);
    spec->groups.push_back(std::move(group));
    spec->image_bytes += 4096;
  }
  Model model;
  model.id = ModelId(7);
  model.spec = std::move(spec);
  return std::make_shared<const Model>(std::move(model));
}

class RpcTest : public ::testing::Test {
 protected:
  explicit RpcTest(DeviceKind kind = DeviceKind::kEmulated)
      : engine_(FactsWith(kind)) {}

  void SetUp() override { Serve(RpcOptions()); }
  // The server ends first: it borrows the engine.
  void TearDown() override { server_.reset(); }

  void Serve(RpcOptions options) {
    server_.reset();
    options.socket = dir_.path() + "/hoistd.grpc.sock";
    ASSERT_OK_AND_ASSIGN(server_,
                         RpcServer::Create(std::move(options), engine_));
    channel_ = NewChannel();
    admin_ = v1::Admin::NewStub(channel_);
    worker_ = v1::Worker::NewStub(channel_);
  }

  // A separate connection.
  std::shared_ptr<grpc::Channel> NewChannel() const {
    grpc::ChannelArguments arguments;
    arguments.SetInt(GRPC_ARG_USE_LOCAL_SUBCHANNEL_POOL, 1);
    return grpc::CreateCustomChannel(
        "unix:" + dir_.path() + "/hoistd.grpc.sock",
        grpc::InsecureChannelCredentials(), arguments);
  }

  TempDir dir_;
  FakeEngine engine_;
  std::unique_ptr<RpcServer> server_;
  std::shared_ptr<grpc::Channel> channel_;
  std::unique_ptr<v1::Admin::Stub> admin_;
  std::unique_ptr<v1::Worker::Stub> worker_;
};

}  // namespace hoistd::testing

#endif  // HOIST_TESTS_UNIT_RPC_RPC_FIXTURE_H_
