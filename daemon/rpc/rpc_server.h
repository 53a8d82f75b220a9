#ifndef HOIST_DAEMON_RPC_RPC_SERVER_H_
#define HOIST_DAEMON_RPC_RPC_SERVER_H_

#include <sys/types.h>

#include <cstdint>
#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "absl/time/time.h"
#include "daemon/engine/engine_api.h"
#include "daemon/io_helper/io_helpers.h"
#include "daemon/rpc/connections.h"
#include "daemon/rpc/node_control.h"
#include "daemon/socket/listening_socket.h"
#include "daemon/types/finding.h"

namespace hoistd {

struct RpcOptions {
  std::string socket;
  mode_t socket_mode = 0660;
  std::optional<User> tenant;  // Whose socket it is; nullopt: who connects.
  std::string group;           // Of the socket; "": as it comes.
  std::string admin_group;     // "": root and our own uid only.
  std::vector<std::string> model_roots;
  // Open paths below the roots; until Shutdown. nullptr: the work threads do,
  // and wait for what hangs.
  IoHelpers* io_helpers = nullptr;
  // Who is asked for a reload and the like; nullptr: nobody, and such calls are
  // Unimplemented. Outlives the server.
  NodeControl* control = nullptr;
  // What the node lacks, on a work thread; nullptr: Unimplemented.
  std::function<std::vector<Finding>()> examine;
  RpcLimits connections;
  // Of images being received over Worker.Publish, all together. A larger one
  // than the host pool could not be kept anyway.
  uint64_t max_publish_bytes = uint64_t{8} << 30;
};

// The gRPC services Admin, Worker, Health and Reflection on one unix socket.
//
// Threads:  Create and Shutdown from one thread. Owns the accepting thread,
//           two work threads, and gRPC's.
// Owns:     the socket and every connection. Borrows the engine, which must
//           outlive it and every callback that it was given.
// Bounds:   connections and a user's calls as `connections`; 128 calls a
// connection; 64 MiB a
//           message from a client.
class RpcServer {
 public:
  // The options' socket. Who connects is served once there is a server.
  // FailedPrecondition: another hoistd serves it. NotFound: no such group on
  // this host (of `group`; a missing `admin_group` is nobody).
  static absl::StatusOr<ListeningSocket> Listen(const RpcOptions& options);
  static absl::StatusOr<std::unique_ptr<RpcServer>> Create(
      RpcOptions options, ListeningSocket socket, EngineApi& engine);
  // Both.
  static absl::StatusOr<std::unique_ptr<RpcServer>> Create(RpcOptions options,
                                                           EngineApi& engine);
  virtual ~RpcServer() = default;  // Shutdown(0), if that was not called.

  // Takes no new calls, lets those that run finish until `deadline` has passed,
  // then cancels them; leases end with their streams. The engine must still
  // serve. Once.
  virtual void Shutdown(absl::Duration deadline) = 0;
  // What Health says from now on, of Worker and of all ("") : SERVING, or
  // NOT_SERVING; Admin is served to the last. Thread-safe.
  virtual void SetServing(bool serving) = 0;
  // Instead of RpcOptions' from now on. Thread-safe.
  virtual void SetModelRoots(std::vector<std::string> roots) = 0;
  // How many clients are connected.
  virtual size_t connections() const = 0;
};

}  // namespace hoistd

#endif  // HOIST_DAEMON_RPC_RPC_SERVER_H_
