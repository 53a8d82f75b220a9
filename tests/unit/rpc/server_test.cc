#include <sys/socket.h>
#include <sys/stat.h>
#include <sys/un.h>
#include <unistd.h>

#include <cstring>
#include <string>

#include "daemon/rpc/rpc_server.h"
#include "gmock/gmock.h"
#include "grpcpp/generic/generic_stub.h"
#include "grpcpp/support/byte_buffer.h"
#include "gtest/gtest.h"
#include "hoist/shared/unique_fd.h"
#include "tests/unit/rpc/rpc_fixture.h"

namespace hoistd::server_test {

using ::hoistd::testing::RpcTest;
using ::hoistd::testing::StatusIs;
using ::testing::HasSubstr;
namespace v1 = hoist::v1;

class ServerTest : public RpcTest {
 protected:
  // One message to `method`, and the first one back; "" where none comes.
  std::string Ask(const std::string& method, const std::string& request) {
    grpc::GenericStub stub(channel_);
    grpc::ClientContext context;
    grpc::CompletionQueue queue;
    const auto call = stub.PrepareCall(&context, method, &queue);
    const auto next = [&queue] {
      void* tag;
      bool ok = false;
      return queue.Next(&tag, &ok) && ok;
    };
    call->StartCall(nullptr);
    if (!next()) return "";
    const grpc::Slice slice(request);
    call->Write(grpc::ByteBuffer(&slice, 1), nullptr);
    if (!next()) return "";
    grpc::ByteBuffer buffer;
    call->Read(&buffer, nullptr);
    std::string response;
    if (next()) {
      grpc::Slice whole;
      if (buffer.DumpToSingleSlice(&whole).ok()) {
        response.assign(whole.begin(), whole.end());
      }
    }
    context.TryCancel();
    grpc::Status status;
    call->Finish(&status, nullptr);
    next();
    return response;
  }
};

TEST_F(ServerTest, HealthSaysServing) {
  // HealthCheckResponse{status: SERVING}.
  EXPECT_EQ(Ask("/grpc.health.v1.Health/Check", ""), "\x08\x01");
}

// HealthCheckRequest{service: ...}.
TEST_F(ServerTest, HealthSaysWhatNoNewWorkIsTakenFor) {
  const auto health = [&](const std::string& service) {
    return Ask("/grpc.health.v1.Health/Check",
               "\x0a" + std::string(1, char(service.size())) + service);
  };
  const std::string serving = "\x08\x01", not_serving = "\x08\x02";
  for (const bool serves : {true, false, true}) {
    server_->SetServing(serves);
    const std::string& expected = serves ? serving : not_serving;
    EXPECT_EQ(Ask("/grpc.health.v1.Health/Check", ""), expected);
    EXPECT_EQ(health("hoist.v1.Worker"), expected);
    EXPECT_EQ(health("hoist.v1.Admin"), serving);
  }
}

TEST_F(ServerTest, ReflectionListsBothServices) {
  // ServerReflectionRequest{list_services: ""}.
  const std::string answer =
      Ask("/grpc.reflection.v1alpha.ServerReflection/ServerReflectionInfo",
          std::string("\x3a\x00", 2));
  EXPECT_THAT(answer, HasSubstr("hoist.v1.Admin"));
  EXPECT_THAT(answer, HasSubstr("hoist.v1.Worker"));
}

TEST_F(ServerTest, SocketHasTheModeItWasGiven) {
  RpcOptions options;
  options.socket_mode = 0600;
  Serve(options);
  struct stat info;
  ASSERT_EQ(stat((dir_.path() + "/hoistd.grpc.sock").c_str(), &info), 0);
  EXPECT_EQ(info.st_mode & 07777, 0600u);
}

TEST_F(ServerTest, SecondDaemonOnOneSocketIsRefused) {
  RpcOptions options;
  options.socket = dir_.path() + "/hoistd.grpc.sock";
  EXPECT_THAT(RpcServer::Create(options, engine_),
              StatusIs(absl::StatusCode::kFailedPrecondition,
                       HasSubstr("another hoistd")));
}

TEST_F(ServerTest, UnknownGroupIsRefusedByName) {
  RpcOptions options;
  options.socket = dir_.path() + "/other.sock";
  options.group = "no-such-group-here";
  EXPECT_THAT(
      RpcServer::Create(options, engine_),
      StatusIs(absl::StatusCode::kNotFound, HasSubstr("no-such-group-here")));
}

TEST_F(ServerTest, ForgetsConnectionsThatEnded) {
  // More than the descriptors it may use at a time: numbers come round.
  for (int i = 0; i < 200; ++i) {
    const auto worker = v1::Worker::NewStub(NewChannel());
    grpc::ClientContext context;
    v1::ListDevicesResponse response;
    const grpc::Status status = worker->ListDevices(&context, {}, &response);
    ASSERT_TRUE(status.ok()) << i << ": " << status.error_message();
  }
  channel_.reset();
  admin_.reset();
  worker_.reset();
  while (server_->connections() > 0) std::this_thread::yield();
}

TEST_F(ServerTest, ConnectionsBeyondTheLimitAreClosedAndOthersServed) {
  RpcOptions options;
  options.connections.all = 1;
  Serve(options);
  grpc::ClientContext context;
  v1::ListDevicesResponse response;
  ASSERT_TRUE(worker_->ListDevices(&context, {}, &response).ok());
  const auto other = v1::Worker::NewStub(NewChannel());
  grpc::ClientContext refused;
  EXPECT_EQ(other->ListDevices(&refused, {}, &response).error_code(),
            grpc::StatusCode::UNAVAILABLE);
  grpc::ClientContext again;
  EXPECT_TRUE(worker_->ListDevices(&again, {}, &response).ok());
}

TEST_F(ServerTest, ShutdownCancelsWhatStillRuns) {
  v1::WorkerStageRequest request;
  request.set_model("m");
  request.set_group("g");
  grpc::ClientContext context;
  const auto stream = worker_->Stage(&context, request);
  auto waiting = engine_.verb<DescribeModelArgs>().Next();
  server_->Shutdown(absl::ZeroDuration());
  engine_.WaitUntilClosed(waiting.session);
  EXPECT_FALSE(stream->Finish().ok());
  server_.reset();
  // The engine answers after the server has gone.
  engine_.Run([done = std::move(waiting.done)]() mutable {
    done(absl::NotFoundError("closed"));
  });
}

TEST_F(ServerTest, GarbageOnTheSocketHarmsNobody) {
  sockaddr_un address = {};
  address.sun_family = AF_UNIX;
  std::strcpy(address.sun_path, (dir_.path() + "/hoistd.grpc.sock").c_str());
  std::string garbage(1 << 16, '\0');
  uint32_t seed = 1;
  for (char& byte : garbage) {
    seed = seed * 1664525 + 1013904223;
    byte = static_cast<char>(seed >> 24);
  }
  for (const std::string& start :
       {std::string(), std::string("PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n")}) {
    const hoist::UniqueFd fd(socket(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0));
    ASSERT_EQ(connect(fd.get(), reinterpret_cast<sockaddr*>(&address),
                      sizeof(address)),
              0);
    send(fd.get(), start.data(), start.size(), MSG_NOSIGNAL);
    send(fd.get(), garbage.data(), garbage.size(), MSG_NOSIGNAL);
    char bytes[4096];
    while (read(fd.get(), bytes, sizeof(bytes)) > 0) {
    }
  }
  grpc::ClientContext context;
  v1::ListDevicesResponse response;
  EXPECT_TRUE(worker_->ListDevices(&context, {}, &response).ok());
}

TEST_F(ServerTest, AUsersCallsOverAllConnectionsAreBounded) {
  RpcOptions options;
  options.connections.calls_of_user = 2;
  Serve(options);
  // Two that wait for the engine, on two connections.
  grpc::ClientContext first_context, second_context;
  v1::WorkerStageRequest request;
  request.set_model("m");
  request.set_group("g");
  auto first = worker_->Stage(&first_context, request);
  const auto first_waits = engine_.verb<DescribeModelArgs>().Next();
  auto other = v1::Worker::NewStub(NewChannel());
  auto second = other->Stage(&second_context, request);
  const auto second_waits = engine_.verb<DescribeModelArgs>().Next();
  const auto list = [](v1::Worker::Stub& worker) {
    grpc::ClientContext context;
    v1::ListDevicesResponse response;
    return worker.ListDevices(&context, {}, &response);
  };
  auto third = v1::Worker::NewStub(NewChannel());
  const grpc::Status refused = list(*third);
  EXPECT_EQ(refused.error_code(), grpc::StatusCode::RESOURCE_EXHAUSTED);
  EXPECT_THAT(refused.error_message(), HasSubstr("2 gRPC calls in flight"));
  first_context.TryCancel();
  EXPECT_FALSE(first->Finish().ok());
  // gRPC forgets the call a little after its caller heard of its end.
  while (!list(*third).ok()) {
  }
  second_context.TryCancel();
  EXPECT_FALSE(second->Finish().ok());
  engine_.WaitUntilClosed(first_waits.session);
  engine_.WaitUntilClosed(second_waits.session);
}

TEST_F(ServerTest, AConnectionWithoutACallIsClosed) {
  RpcOptions options;
  options.connections.idle = absl::Milliseconds(50);
  Serve(options);
  sockaddr_un address = {};
  address.sun_family = AF_UNIX;
  std::strcpy(address.sun_path, (dir_.path() + "/hoistd.grpc.sock").c_str());
  // One that says nothing at all, and one that begins as HTTP/2 does: the
  // preface, and empty settings.
  const std::string settings = {0, 0, 0, 4, 0, 0, 0, 0, 0};
  for (const std::string& start :
       {std::string(), "PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n" + settings}) {
    const hoist::UniqueFd fd(socket(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0));
    ASSERT_EQ(connect(fd.get(), reinterpret_cast<sockaddr*>(&address),
                      sizeof(address)),
              0);
    send(fd.get(), start.data(), start.size(), MSG_NOSIGNAL);
    char bytes[4096];
    while (read(fd.get(), bytes, sizeof(bytes)) > 0) {
    }
  }
  // Whoever calls again is served, over another connection.
  for (int call = 0; call < 2; ++call) {
    grpc::ClientContext context;
    v1::ListDevicesResponse response;
    context.set_wait_for_ready(true);
    EXPECT_TRUE(worker_->ListDevices(&context, {}, &response).ok());
  }
}

}  // namespace hoistd::server_test
