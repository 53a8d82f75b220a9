// A hoistd whose stream cannot be decoded, and goes on: hoistctl ends.
#include <chrono>
#include <memory>
#include <sstream>
#include <string>
#include <vector>

#include "client/ctl/command_line.h"
#include "gmock/gmock.h"
#include "grpcpp/generic/async_generic_service.h"
#include "grpcpp/grpcpp.h"
#include "gtest/gtest.h"
#include "tests/unit/rpc/rpc_fixture.h"

namespace hoistd::undecodable_test {

using ::testing::HasSubstr;

// One message that is no protobuf, and then nothing until it is cancelled.
class Undecodable final : public grpc::ServerGenericBidiReactor {
 public:
  Undecodable() {
    const grpc::Slice slice(std::string("\xff\xff\xff\xff"));
    message_ = grpc::ByteBuffer(&slice, 1);
    StartWrite(&message_);
  }
  void OnCancel() override { Finish(grpc::Status::CANCELLED); }
  void OnDone() override { delete this; }

 private:
  grpc::ByteBuffer message_;
};

class AnotherRelease final : public grpc::CallbackGenericService {
 public:
  grpc::ServerGenericBidiReactor* CreateReactor(
      grpc::GenericCallbackServerContext*) override {
    return new Undecodable;
  }
};

TEST(Undecodable, EveryStreamingCommandEndsAndSaysSo) {
  const testing::TempDir dir;
  const std::string socket = dir.path() + "/hoistd.grpc.sock";
  AnotherRelease service;
  grpc::ServerBuilder builder;
  builder.AddListeningPort("unix:" + socket, grpc::InsecureServerCredentials());
  builder.RegisterCallbackGenericService(&service);
  const std::unique_ptr<grpc::Server> server = builder.BuildAndStart();
  ASSERT_NE(server, nullptr);
  const std::vector<std::vector<const char*>> commands = {
      {"watch"},
      {"drain"},
      {"check"},
      {"trace", "record", "--out", "-"},
  };
  for (const std::vector<const char*>& command : commands) {
    SCOPED_TRACE(command[0]);
    std::vector<const char*> words = {"hoistctl", "--socket", socket.c_str(),
                                      "--timeout", "0.2"};
    words.insert(words.end(), command.begin(), command.end());
    std::ostringstream out, err;
    const int exit = hoist::ctl::RunCommandLine(static_cast<int>(words.size()),
                                                words.data(), out, err, false);
    EXPECT_EQ(exit, 1);
    EXPECT_THAT(err.str(), HasSubstr("cannot decode"));
  }
  server->Shutdown(std::chrono::system_clock::now());
}

}  // namespace hoistd::undecodable_test
