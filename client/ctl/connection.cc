#include "client/ctl/connection.h"

#include <poll.h>
#include <sys/socket.h>
#include <sys/un.h>

#include <algorithm>
#include <cerrno>
#include <chrono>
#include <cstring>
#include <future>
#include <sstream>
#include <thread>

#include "client/ctl/text.h"
#include "google/protobuf/struct.pb.h"
#include "google/protobuf/util/json_util.h"
#include "grpcpp/create_channel.h"
#include "grpcpp/security/credentials.h"
#include "grpcpp/support/channel_arguments.h"
#include "hoist/shared/socket_path.h"
#include "hoist/shared/status.h"
#include "hoist/shared/unique_fd.h"

namespace hoist::ctl {
namespace {

using std::chrono::milliseconds;

// What gRPC 1.51 says of a deadline that it kept itself, and of a sign of life
// that did not come.
constexpr char kOwnDeadline[] = "Deadline Exceeded";
constexpr char kNoSignOfLife[] = "keepalive";

// hoistd may have no room for a moment; gRPC's own second before it tries
// again is longer than some timeouts.
constexpr int kTryAgainMs = 100;

// Who listens there; 0: not to be had.
pid_t ListenerOf(int socket) {
  ucred credentials = {};
  socklen_t bytes = sizeof(credentials);
  if (getsockopt(socket, SOL_SOCKET, SO_PEERCRED, &credentials, &bytes) != 0) {
    return 0;
  }
  return credentials.pid;
}

// Connected, or invalid with errno. A queue of connections that is full, since
// nobody accepts them, has it wait so long.
UniqueFd Connect(const std::string& path, milliseconds timeout) {
  sockaddr_un address = {};
  address.sun_family = AF_UNIX;
  if (path.size() >= sizeof(address.sun_path)) {
    errno = ENAMETOOLONG;
    return UniqueFd();
  }
  std::memcpy(address.sun_path, path.data(), path.size());
  UniqueFd fd(socket(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0));
  if (!fd.valid()) return fd;
  timeval limit = {};
  limit.tv_sec = static_cast<time_t>(timeout.count() / 1000);
  limit.tv_usec = static_cast<suseconds_t>(timeout.count() % 1000 * 1000);
  setsockopt(fd.get(), SOL_SOCKET, SO_SNDTIMEO, &limit, sizeof(limit));
  if (connect(fd.get(), reinterpret_cast<const sockaddr*>(&address),
              sizeof(address)) != 0) {
    const int error = errno;
    fd.reset();
    errno = error;
  }
  return fd;
}

// What hoistd says to a connection that it closes at once (HTTP/2's GOAWAY);
// "": nothing of the kind.
std::string RefusalOf(int socket) {
  constexpr size_t kHead = 9 + 8;  // Of a frame, and of a GOAWAY.
  constexpr char kGoAway = 7;
  pollfd said = {socket, POLLIN, 0};
  char bytes[512];
  if (poll(&said, 1, /*timeout=*/200) <= 0) return "";
  const ssize_t n = recv(socket, bytes, sizeof(bytes), MSG_DONTWAIT);
  if (n <= static_cast<ssize_t>(kHead) || bytes[3] != kGoAway) return "";
  return std::string(bytes + kHead, static_cast<size_t>(n) - kHead);
}

std::shared_ptr<grpc::Channel> OpenChannel(const std::string& socket,
                                           milliseconds timeout) {
  grpc::ChannelArguments arguments;
  // A model with 20,000 tensors is beyond gRPC's 4 MiB.
  arguments.SetMaxReceiveMessageSize(-1);
  // hoistctl is no place for a proxy of the environment.
  arguments.SetInt(GRPC_ARG_ENABLE_HTTP_PROXY, 0);
  arguments.SetInt(GRPC_ARG_INITIAL_RECONNECT_BACKOFF_MS, kTryAgainMs);
  arguments.SetInt(GRPC_ARG_MAX_RECONNECT_BACKOFF_MS, kTryAgainMs);
  // While a call is under way, hoistd's transport is asked for a sign of life.
  const int half = static_cast<int>(timeout.count() / 2);
  arguments.SetInt(GRPC_ARG_KEEPALIVE_TIME_MS, half);
  arguments.SetInt(GRPC_ARG_KEEPALIVE_TIMEOUT_MS, half);
  arguments.SetInt(GRPC_ARG_HTTP2_MAX_PINGS_WITHOUT_DATA, 0);
  return grpc::CreateCustomChannel(
      "unix:" + socket, grpc::InsecureChannelCredentials(), arguments);
}

}  // namespace

Connection::Connection(const std::string& named, milliseconds timeout)
    : timeout_(timeout),
      end_(std::chrono::steady_clock::now() + timeout),
      candidates_(SocketsToTry(named)),
      socket_(FirstAnswering()) {}

milliseconds Connection::Left() const {
  return std::max(milliseconds(1),
                  std::chrono::duration_cast<milliseconds>(
                      end_ - std::chrono::steady_clock::now()));
}

int Connection::TryToConnect(const std::string& path) const {
  return Connect(path, Left()).valid() ? 0 : errno;
}

std::vector<std::string> Connection::SocketsToTry(
    const std::string& named) const {
  // Only the session's socket is one of packets.
  if (!named.empty() && TryToConnect(named) != EPROTOTYPE) return {named};
  std::vector<std::string> sockets =
      named.empty() ? SessionSocketsToTry() : std::vector<std::string>{named};
  for (std::string& socket : sockets) socket = GrpcSocketBeside(socket);
  return sockets;
}

std::string Connection::FirstAnswering() const {
  for (const std::string& socket : candidates_) {
    const int error = TryToConnect(socket);
    // A full queue is somebody's who lives.
    if (error == 0 || error == EAGAIN) return socket;
  }
  return candidates_.front();
}

std::unique_ptr<grpc::ClientContext> Connection::context(Lasts lasts) const {
  auto context = std::make_unique<grpc::ClientContext>();
  if (lasts == Lasts::kTimeout) {
    context->set_deadline(std::chrono::system_clock::now() + timeout_);
  }
  return context;
}

int Connection::Check(const Output& output) {
  if (!Opens(output)) return kExitNoDaemon;
  channel_ = OpenChannel(socket_, timeout_);
  if (!channel_->WaitForConnected(std::chrono::system_clock::now() + Left())) {
    return Opens(output) ? Silent(output) : kExitNoDaemon;
  }
  admin_ = v1::Admin::NewStub(channel_);
  return kExitOk;
}

int Connection::Answers(const Output& output) const {
  using Clock = std::chrono::system_clock;
  const Clock::time_point end = Clock::now() + timeout_;
  do {
    if (!Opens(output)) return kExitNoDaemon;
    const milliseconds tried(kTryAgainMs);
    if (channel_->WaitForConnected(Clock::now() + tried)) return kExitOk;
  } while (Clock::now() < end);
  return Silent(output);
}

int Connection::Silent(const Output& output) const {
  const UniqueFd socket = Connect(socket_, milliseconds(1));
  const std::string refusal = socket.valid() ? RefusalOf(socket.get()) : "";
  if (!refusal.empty()) {
    WriteError(output, "UNAVAILABLE", refusal, /*show_code=*/false);
    return kExitRefused;
  }
  const pid_t listener = socket.valid() ? ListenerOf(socket.get()) : 0;
  std::ostringstream why;
  why << "hoistd";
  if (listener > 0) why << " (pid " << listener << ")";
  why << " gives no sign of life at " << socket_ << " for "
      << timeout_.count() / 1000.0
      << " s; it is stopped, hangs, or is very busy (--timeout)";
  WriteError(output, "DEADLINE_EXCEEDED", why.str());
  return kExitNoDaemon;
}

bool Connection::Opens(const Output& output) const {
  const int opened = TryToConnect(socket_);
  if (opened == 0) return true;
  if (opened == EAGAIN) {
    Silent(output);
    return false;
  }
  bool missing = false;
  bool forbidden = false;
  std::ostringstream why;
  why << "no hoistd at ";
  for (const std::string& socket : candidates_) {
    const int error = TryToConnect(socket);
    missing = missing || error == ENOENT || error == ECONNREFUSED;
    forbidden = forbidden || error == EACCES;
    why << (socket == candidates_.front() ? "" : ", ") << socket << ": "
        << std::strerror(error);
  }
  if (missing) {
    why << "; start it (hoistd --user, or the node's: systemctl start "
           "hoistd), or name its socket with --socket or $"
        << kSocketPathVariable;
  }
  if (forbidden) {
    why << "; your user must be in the socket's group (hoist)";
  }
  WriteError(output, "UNAVAILABLE", why.str(), /*show_code=*/false);
  return false;
}

grpc::Status Connection::Finish(
    grpc::ClientContext& context,
    grpc::internal::ClientStreamingInterface& stream) const {
  std::promise<void> finished;
  bool gave_up = false;
  std::thread watch([&, done = finished.get_future()] {
    gave_up = done.wait_for(timeout_) == std::future_status::timeout;
    if (gave_up) context.TryCancel();
  });
  grpc::Status status = stream.Finish();
  finished.set_value();
  watch.join();
  if (!gave_up || status.error_code() != grpc::StatusCode::CANCELLED) {
    return status;
  }
  return {grpc::StatusCode::INTERNAL,
          "hoistd has sent what this hoistctl cannot decode; are both of one "
          "release? `hoistctl version` tells"};
}

int Connection::Fail(const grpc::Status& status, const Output& output) const {
  if (status.error_code() == grpc::StatusCode::DEADLINE_EXCEEDED &&
      status.error_message() == kOwnDeadline) {
    return Silent(output);
  }
  // UNAVAILABLE is also what a daemon says that drains, or that has died.
  if (status.error_code() == grpc::StatusCode::UNAVAILABLE) {
    if (!Opens(output)) return kExitNoDaemon;
    if (status.error_message().find(kNoSignOfLife) != std::string::npos) {
      return Silent(output);
    }
    if (const int code = Answers(output); code != kExitOk) return code;
  }
  WriteError(output, CodeName(static_cast<Code>(status.error_code())),
             status.error_message());
  return kExitRefused;
}

void WriteError(const Output& output, const std::string& code,
                const std::string& message, bool show_code) {
  if (!output.json) {
    output.err << "hoistctl: " << (show_code ? code + ": " : "")
               << Shown(message) << '\n';
    return;
  }
  google::protobuf::Struct all;
  auto& error = *(*all.mutable_fields())["error"].mutable_struct_value();
  (*error.mutable_fields())["code"].set_string_value(code);
  (*error.mutable_fields())["message"].set_string_value(Shown(message));
  PrintJson(all, JsonStyle::kLine, {output.err, output.err, true});
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
