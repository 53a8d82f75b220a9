#ifndef HOIST_TESTS_UNIT_RPC_STRANGERS_ADMIN_H_
#define HOIST_TESTS_UNIT_RPC_STRANGERS_ADMIN_H_

#include <memory>
#include <string>
#include <utility>

#include "daemon/base/check.h"
#include "daemon/rpc/admin_service.h"
#include "grpcpp/create_channel.h"
#include "grpcpp/security/credentials.h"
#include "grpcpp/server.h"
#include "grpcpp/server_builder.h"
#include "tests/unit/rpc/rpc_fixture.h"

namespace hoistd::testing {

// The admin service as served to uid 1234, pid 77, who is not an admin.
class StrangersAdmin {
 public:
  explicit StrangersAdmin(std::string admin_group = "") {
    env_->admin_group = std::move(admin_group);
    env_->find_peer = [](const std::string&) {
      Peer peer;
      peer.uid = User(1234);
      peer.pid = 77;
      return peer;
    };
    const std::string address = "unix:" + dir_.path() + "/s";
    grpc::ServerBuilder builder;
    builder.AddListeningPort(address, grpc::InsecureServerCredentials());
    builder.RegisterService(&service_);
    server_ = builder.BuildAndStart();
    HOIST_CHECK(server_ != nullptr);
    stub_ = hoist::v1::Admin::NewStub(
        grpc::CreateChannel(address, grpc::InsecureChannelCredentials()));
  }

  hoist::v1::Admin::Stub* operator->() { return stub_.get(); }
  FakeEngine& engine() { return engine_; }
  hoist::v1::Admin::Stub* get() { return stub_.get(); }

 private:
  TempDir dir_;
  FakeEngine engine_{FactsWith(DeviceKind::kEmulated)};
  std::shared_ptr<CallEnv> env_ = std::make_shared<CallEnv>(engine_);
  AdminService service_{env_};
  std::unique_ptr<grpc::Server> server_;
  std::unique_ptr<hoist::v1::Admin::Stub> stub_;
};

}  // namespace hoistd::testing

#endif  // HOIST_TESTS_UNIT_RPC_STRANGERS_ADMIN_H_
