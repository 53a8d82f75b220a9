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
  bool keeps = false;  // Sessions can go on with the next hoistd.
  uint64_t max_publish_bytes = 0;
};

// Of server.socket and server.grpc_socket, then of each tenant's. Of both of
// one, gRPC's listens before sessions are served: a worker that has a session
// reaches hoistd by hoistctl, too.
//
// Threads:  Open, the two Ends and the destructor from one thread; the rest
//           thread-safe.
// Owns:     the servers. Borrows what the options name, and the engine.
class Doors {
 public:
  // What the last hoistd left of sessions goes on, or is closed where its
  // tenant is none any more. Errors name the key that corrects them.
  static absl::StatusOr<std::unique_ptr<Doors>> Open(const Config& config,
                                                     DoorOptions options,
                                                     Engine& engine);

  // What Health says, and the folders that calls may name.
  void SetServing(bool serving);
  void SetModelRoots(const std::vector<std::string>& roots);

  // All calls together have so long to end.
  void EndCalls(absl::Duration within);
  // Nobody is answered any more; those that go on with the next hoistd ask it.
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
  std::vector<ResumedSession> resumed_;  // Until a server takes them up.
  std::vector<std::unique_ptr<SessionServer>> sessions_;
  std::vector<std::unique_ptr<RpcServer>> calls_;
};

}  // namespace hoistd

#endif  // HOIST_DAEMON_APP_DOORS_H_
