#include "client/ctl/connection.h"

#include <sys/socket.h>
#include <sys/un.h>

#include <cerrno>
#include <cstring>

#include "client/ctl/text.h"
#include "google/protobuf/util/json_util.h"
#include "grpcpp/create_channel.h"
#include "grpcpp/security/credentials.h"
#include "grpcpp/support/channel_arguments.h"
#include "hoist/shared/socket_path.h"
#include "hoist/shared/status.h"
#include "hoist/shared/unique_fd.h"

namespace hoist::ctl {
namespace {

// 0, or the errno of connecting.
int TryToConnect(const std::string& path) {
  sockaddr_un address = {};
  address.sun_family = AF_UNIX;
  if (path.size() >= sizeof(address.sun_path)) return ENAMETOOLONG;
  std::memcpy(address.sun_path, path.data(), path.size());
  const UniqueFd fd(socket(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0));
  if (!fd.valid()) return errno;
  if (connect(fd.get(), reinterpret_cast<const sockaddr*>(&address),
              sizeof(address)) != 0) {
    return errno;
  }
  return 0;
}

std::vector<std::string> GrpcSocketsToTry(const std::string& named) {
  // Only the session's socket is one of packets.
  if (!named.empty() && TryToConnect(named) != EPROTOTYPE) return {named};
  std::vector<std::string> sockets =
      named.empty() ? SessionSocketsToTry() : std::vector<std::string>{named};
  for (std::string& socket : sockets) socket = GrpcSocketBeside(socket);
  return sockets;
}

std::string FirstThatAnswers(const std::vector<std::string>& sockets) {
  for (const std::string& socket : sockets) {
    if (TryToConnect(socket) == 0) return socket;
  }
  return sockets.front();
}

}  // namespace

Connection::Connection(const std::string& named)
    : candidates_(GrpcSocketsToTry(named)),
      socket_(FirstThatAnswers(candidates_)) {}

v1::Admin::Stub& Connection::admin() {
  if (admin_ != nullptr) return *admin_;
  grpc::ChannelArguments arguments;
  // A model with 20,000 tensors is beyond gRPC's 4 MiB.
  arguments.SetMaxReceiveMessageSize(-1);
  // hoistctl is no place for a proxy of the environment.
  arguments.SetInt(GRPC_ARG_ENABLE_HTTP_PROXY, 0);
  admin_ = v1::Admin::NewStub(grpc::CreateCustomChannel(
      "unix:" + socket_, grpc::InsecureChannelCredentials(), arguments));
  return *admin_;
}

int Connection::Check(const Output& output) const {
  if (TryToConnect(socket_) == 0) return kExitOk;
  bool missing = false;
  bool forbidden = false;
  output.err << "hoistctl: no hoistd at ";
  for (const std::string& socket : candidates_) {
    const int error = TryToConnect(socket);
    missing = missing || error == ENOENT || error == ECONNREFUSED;
    forbidden = forbidden || error == EACCES;
    output.err << (socket == candidates_.front() ? "" : ", ") << Shown(socket)
               << ": " << std::strerror(error);
  }
  if (missing) {
    output.err << "; start it (hoistd --user, or the node's: systemctl start "
                  "hoistd), or name its socket with --socket or $"
               << kSocketPathVariable;
  }
  if (forbidden) {
    output.err << "; your user must be in the socket's group (hoist)";
  }
  output.err << '\n';
  return kExitNoDaemon;
}

int Connection::Fail(const grpc::Status& status, const Output& output) const {
  // UNAVAILABLE is also what a daemon says that drains, or that has died.
  if (status.error_code() == grpc::StatusCode::UNAVAILABLE) {
    if (const int exit = Check(output); exit != kExitOk) return exit;
  }
  output.err << "hoistctl: " << CodeName(static_cast<Code>(status.error_code()))
             << ": " << Shown(status.error_message()) << '\n';
  return kExitRefused;
}

void PrintJson(const google::protobuf::Message& message, JsonStyle style,
               const Output& output) {
  google::protobuf::util::JsonPrintOptions options;
  options.add_whitespace = style == JsonStyle::kPretty;
  options.always_print_primitive_fields = true;
  options.preserve_proto_field_names = true;
  std::string json;
  // Fails only for google.protobuf.Any of unknown types, which we have not.
  static_cast<void>(
      google::protobuf::util::MessageToJsonString(message, &json, options));
  output.out << json;
  if (json.empty() || json.back() != '\n') output.out << '\n';
  output.out.flush();
}

}  // namespace hoist::ctl
