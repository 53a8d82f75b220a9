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
  std::optional<User> tenant;  // The socket's owner; nullopt: each peer's uid.
  std::string group;           // Of the socket; "": the default group.
  std::string admin_group;     // "": root and our own uid only.
  std::vector<std::string> model_roots;
  // Open paths below the roots, until Shutdown. nullptr: the work threads open
  // them, and a file system that hangs blocks those.
  IoHelpers* io_helpers = nullptr;
  // Serves reloads and the like; nullptr: such calls are Unimplemented.
  // Outlives the server.
  NodeControl* control = nullptr;
  // Lists the node's deficiencies, on a work thread; nullptr: Unimplemented.
  std::function<std::vector<Finding>()> examine;
  RpcLimits connections;
  // The total of all images being received over Worker.Publish. An image that
  // is larger than the host pool could not be kept anyway.
  uint64_t max_publish_bytes = uint64_t{8} << 30;
};

// The gRPC services Admin, Worker, Health and Reflection on one unix socket.
//
// Threads:  Create and Shutdown from one thread. Owns the accepting thread,
//           two work threads, and gRPC's.
// Owns:     the socket and every connection. Borrows the engine, which must
//           outlive it and every callback that it was given.
// Bounds:   connections and each user's calls by `connections`; 128 calls per
//           connection; 64 MiB per message from a client.
class RpcServer {
 public:
  // Opens the options' socket. Clients can connect, and are served once there
  // is a server. FailedPrecondition: another hoistd serves the socket.
  // NotFound: this host has no `group`. A missing `admin_group` has no members.
  static absl::StatusOr<ListeningSocket> Listen(const RpcOptions& options);
  static absl::StatusOr<std::unique_ptr<RpcServer>> Create(
      RpcOptions options, ListeningSocket socket, EngineApi& engine);
  // Listens and creates.
  static absl::StatusOr<std::unique_ptr<RpcServer>> Create(RpcOptions options,
                                                           EngineApi& engine);
  virtual ~RpcServer() = default;  // Shutdown(0), if that was not called.

  // Takes no new calls, lets running ones finish until `deadline`, then cancels
  // them. Leases end with their streams. The engine must still serve. Once.
  virtual void Shutdown(absl::Duration deadline) = 0;
  // Sets Health's answer for Worker and for the whole server (""): SERVING or
  // NOT_SERVING. Admin is served to the last. Thread-safe.
  virtual void SetServing(bool serving) = 0;
  // Replaces RpcOptions::model_roots. Thread-safe.
  virtual void SetModelRoots(std::vector<std::string> roots) = 0;
  // How many clients are connected.
  virtual size_t connections() const = 0;
};

}  // namespace hoistd

#endif  // HOIST_DAEMON_RPC_RPC_SERVER_H_
