#ifndef HOIST_CLIENT_CTL_CONNECTION_H_
#define HOIST_CLIENT_CTL_CONNECTION_H_

#include <chrono>
#include <memory>
#include <ostream>
#include <string>
#include <vector>

#include "google/protobuf/message.h"
#include "grpcpp/channel.h"
#include "grpcpp/client_context.h"
#include "grpcpp/support/status.h"
#include "grpcpp/support/sync_stream.h"
#include "hoist/v1/admin.grpc.pb.h"

namespace hoist::ctl {

// What hoistctl ends with; --help documents it.
enum ExitCode {
  kExitOk = 0,
  kExitRefused = 1,   // By the daemon.
  kExitUsage = 2,     // The command line.
  kExitNoDaemon = 3,  // Nobody answers at the socket, or we may not open it.
  kExitDamaged = 4,   // check, or doctor, found something.
};

// Where a command writes, and how.
struct Output {
  std::ostream& out;
  std::ostream& err;
  bool json = false;
  bool terminal = false;  // `out` is one: progress may move the cursor.
};

// One line: "hoistctl: message", or "hoistctl: CODE: message" if the code is to
// be shown; as JSON {"error":{"code":"CODE","message":"message"}}. `code`:
// gRPC's name, "NOT_FOUND". What clients named is escaped.
void WriteError(const Output& output, const std::string& code,
                const std::string& message, bool show_code = true);

// How long a call may take.
enum class Lasts {
  kTimeout,  // No longer than the timeout.
  kWork,     // As long as hoistd lives, however long that is.
};

// The daemon at the other end of a gRPC socket.
class Connection {
 public:
  // `named`: the path of either of hoistd's sockets. "": that of $HOIST_SOCKET,
  // or, where it is not set, of the first hoistd that answers of this user's
  // own and the node's. `timeout`: how long hoistd may give no sign of life.
  Connection(const std::string& named, std::chrono::milliseconds timeout);

  // After Check.
  v1::Admin::Stub& admin() { return *admin_; }
  // Of one call.
  std::unique_ptr<grpc::ClientContext> context(Lasts lasts) const;
  // What a stream that brings nothing more has ended with. INTERNAL: with a
  // message that cannot be decoded; hoistd does not know, and would go on.
  grpc::Status Finish(grpc::ClientContext& context,
                      grpc::internal::ClientStreamingInterface& stream) const;
  // Writes "hoistctl: CODE: reason" in one line and says what to exit with.
  int Fail(const grpc::Status& status, const Output& output) const;
  // Connects. kExitOk, or writes why that failed: kExitNoDaemon.
  int Check(const Output& output);

 private:
  // Of the time to connect.
  std::chrono::milliseconds Left() const;
  // 0, or the errno of connecting. EAGAIN: nobody accepts.
  int TryToConnect(const std::string& path) const;
  std::vector<std::string> SocketsToTry(const std::string& named) const;
  std::string FirstAnswering() const;
  // Writes why no socket opens, if so; whether one does.
  bool Opens(const Output& output) const;
  // kExitOk: the call's own connection lives, or a new one is served; else
  // writes why not. To open is not enough to know: a process that is killed
  // may close its connections before the socket that it listens at.
  int Answers(const Output& output) const;
  // Why a hoistd that lets us connect serves us not.
  int Silent(const Output& output) const;

  const std::chrono::milliseconds timeout_;
  const std::chrono::steady_clock::time_point end_;
  // Never empty; socket_ is one of them.
  const std::vector<std::string> candidates_;
  // The first that answers, else the first.
  const std::string socket_;
  std::shared_ptr<grpc::Channel> channel_;
  std::unique_ptr<v1::Admin::Stub> admin_;
};

// As JSON: on many lines, or, one message of a stream, on one.
enum class JsonStyle { kPretty, kLine };
void PrintJson(const google::protobuf::Message& message, JsonStyle style,
               const Output& output);

}  // namespace hoist::ctl

#endif  // HOIST_CLIENT_CTL_CONNECTION_H_
