// The common context of all gRPC calls.
#ifndef HOIST_DAEMON_RPC_CALL_ENV_H_
#define HOIST_DAEMON_RPC_CALL_ENV_H_

#include <atomic>
#include <cstdint>
#include <functional>
#include <string>
#include <utility>
#include <vector>

#include "absl/status/statusor.h"
#include "absl/time/time.h"
#include "daemon/core/requests.h"
#include "daemon/engine/engine_api.h"
#include "daemon/io_helper/io_helpers.h"
#include "daemon/rpc/audit.h"
#include "daemon/rpc/call_counts.h"
#include "daemon/rpc/model_path.h"
#include "daemon/rpc/node_control.h"
#include "daemon/rpc/open_path.h"
#include "daemon/rpc/work_queue.h"
#include "daemon/types/finding.h"
#include "grpcpp/server_context.h"

namespace hoistd {

// Shared by RpcServer and the engine's outstanding callbacks: a call may be
// cancelled, and the server destroyed, before the engine answers. Callbacks
// therefore hold a reference, and find here all that they need.
struct CallEnv {
  explicit CallEnv(EngineApi& the_engine) : engine(the_engine) {}

  EngineApi& engine;                // Outlives its callbacks.
  IoHelpers* io_helpers = nullptr;  // As RpcOptions says.
  WorkQueue queue;                  // RpcServer starts it.
  // The peer of a connection; Connections::Find.
  FindPeer find_peer;
  std::shared_ptr<CallCounts> calls;  // nullptr: calls are not counted.
  ModelRoots model_roots;
  NodeControl* control = nullptr;  // As RpcOptions says, like the next.
  std::function<std::vector<Finding>()> examine;
  std::string admin_group;
  uint64_t max_publish_bytes = 0;             // Of all Publish calls at once.
  std::atomic<uint64_t> publishing_bytes{0};  // Of those being received.

  PathEnv paths() { return {model_roots.Get(), io_helpers, &queue}; }

  // ResourceExhausted: the user has too many calls in flight.
  absl::StatusOr<Peer> PeerOf(const grpc::ServerContextBase& call) const;
  // The message of PermissionDenied says who is allowed.
  absl::StatusOr<Peer> AdminOf(const grpc::ServerContextBase& call) const;
  // For an act that the owner of its target may do, too.
  absl::StatusOr<AdminAct> ActOf(const grpc::ServerContextBase& call,
                                 std::string act, std::string on) const;
  // For an act that requires an admin. Logs a refusal. The caller reports the
  // act's end.
  absl::StatusOr<AdminAct> AdminActOf(const grpc::ServerContextBase& call,
                                      std::string act, std::string on) const;

 private:
  absl::Status CheckAdmin(const Peer& peer) const;
};

// The time left until the call's deadline, at most kMaxDeadline; may be < 0.
absl::Duration TimeLeft(const grpc::ServerContextBase& call);

// The engine session of one call. Move-only; the destructor closes it.
class CallSession {
 public:
  CallSession() = default;
  CallSession(EngineApi* engine, SessionId id) : engine_(engine), id_(id) {}
  CallSession(CallSession&& other) noexcept
      : engine_(std::exchange(other.engine_, nullptr)), id_(other.id_) {}
  CallSession& operator=(CallSession&& other) noexcept {
    if (this != &other) {
      Close();
      engine_ = std::exchange(other.engine_, nullptr);
      id_ = other.id_;
    }
    return *this;
  }
  ~CallSession() { Close(); }

  bool open() const { return engine_ != nullptr; }
  SessionId id() const { return id_; }
  void Close() {
    if (engine_ != nullptr) std::exchange(engine_, nullptr)->CloseSession(id_);
  }

 private:
  EngineApi* engine_ = nullptr;
  SessionId id_;
};

// Opens a session for the call named `what`, as `peer`.
void OpenCallSession(EngineApi& engine, Peer peer, std::string what,
                     Done<CallSession> done);

}  // namespace hoistd

#endif  // HOIST_DAEMON_RPC_CALL_ENV_H_
