// The sockets that hoistd serves.
#ifndef HOIST_DAEMON_APP_DOORS_H_
#define HOIST_DAEMON_APP_DOORS_H_

#include <cstdint>
#include <functional>
#include <memory>
#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "absl/time/time.h"
#include "daemon/config/config.h"
#include "daemon/engine/engine.h"
#include "daemon/io_helper/io_helpers.h"
#include "daemon/rpc/node_control.h"
#include "daemon/rpc/rpc_server.h"
#include "daemon/session/session_server.h"
#include "daemon/socket/listening_socket.h"
#include "daemon/types/finding.h"
#include "hoist/shared/unique_fd.h"

namespace hoistd {

struct DoorOptions {
  hoist::UniqueFd session_fd;  // A listening socket of systemd's, or none.
  IoHelpers* io_helpers = nullptr;
  NodeControl* control = nullptr;
  std::function<std::vector<Finding>()> examine;
  bool keeps = false;  // Sessions continue with the next hoistd.
  uint64_t max_publish_bytes = 0;
};

// Servers of server.socket and server.grpc_socket, then of each tenant's
// sockets. Of each pair, gRPC listens before sessions are served: a worker with
// a session can reach hoistd by hoistctl.
//
// Threads:  Open, the two Ends and the destructor from one thread; the rest
//           thread-safe.
// Owns:     the servers. Borrows the engine and the options' pointers.
class Doors {
 public:
  // Resumes the last hoistd's sessions; closes those of removed tenants. Errors
  // name the key that corrects them.
  static absl::StatusOr<std::unique_ptr<Doors>> Open(const Config& config,
                                                     DoorOptions options,
                                                     Engine& engine);

  // SetServing: Health's answer. SetModelRoots: folders that calls may name.
  void SetServing(bool serving);
  void SetModelRoots(const std::vector<std::string>& roots);

  // Ends all calls; waits at most `within` for all of them.
  void EndCalls(absl::Duration within);
  // Stops answering sessions; the next hoistd answers those that continue.
  void EndSessions();

 private:
  Doors(const Config& config, DoorOptions options, Engine& engine)
      : config_(config), options_(std::move(options)), engine_(engine) {}

  absl::Status Serve();
  absl::Status ServeSessions(SessionServerOptions options,
                             const std::string& group);
  absl::Status ServeCalls(RpcOptions options, ListeningSocket socket);
  absl::Status ServeTenant(const TenantConfig& tenant);

  const Config config_;
  DoorOptions options_;
  Engine& engine_;
  std::vector<ResumedSession> resumed_;  // Until a server takes them.
  std::vector<std::unique_ptr<SessionServer>> sessions_;
  std::vector<std::unique_ptr<RpcServer>> calls_;
};

}  // namespace hoistd

#endif  // HOIST_DAEMON_APP_DOORS_H_
