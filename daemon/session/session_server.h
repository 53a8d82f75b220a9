// The session socket, which connects libhoist to the engine.
#ifndef HOIST_DAEMON_SESSION_SESSION_SERVER_H_
#define HOIST_DAEMON_SESSION_SESSION_SERVER_H_

#include <sys/types.h>

#include <cstddef>
#include <cstdint>
#include <memory>
#include <optional>
#include <thread>
#include <vector>

#include "absl/base/thread_annotations.h"
#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/synchronization/mutex.h"
#include "absl/time/time.h"
#include "daemon/base/clock.h"
#include "daemon/engine/engine_api.h"
#include "daemon/io_helper/io_helpers.h"
#include "daemon/session/connection.h"
#include "daemon/session/reply.h"
#include "daemon/socket/listening_socket.h"
#include "hoist/shared/unique_fd.h"
#include "hoist/shared/wire.h"

namespace hoistd {

// Limits on connections that have not sent OpenSession yet.
struct SilentLimits {
  size_t of_uid = 32;
  size_t all = 256;
  absl::Duration deadline = absl::Seconds(10);
};

struct SessionServerOptions {
  // The socket to create; unused if `listen_fd` is given.
  SocketFileOptions socket;
  // A listening unix SOCK_SEQPACKET socket made by systemd.
  hoist::UniqueFd listen_fd;
  // The socket's owner; nullopt: each peer's uid.
  std::optional<User> tenant;
  // Its members are admins, besides root and hoistd's own uid.
  std::optional<gid_t> admin_group;
  size_t max_sessions = 1024;
  // Limits one message's body. Parsed, it briefly takes many times as much.
  size_t max_request_bytes = hoist::kMaxRequestBody;
  SilentLimits silent;
  ConnectionLimits connection;
  // Receive messages with descriptors, since even closing one may hang.
  // nullptr: the session thread receives them, for trusted clients.
  IoHelpers* io_helpers = nullptr;
  const Clock* clock = nullptr;  // For `silent`; nullptr: the machine's.
  InstanceId instance_id = {};   // As NewInstanceId gives.
  // Sessions survive hoistd's end, if their clients support it.
  bool keeps = false;
  // Sessions of the previous hoistd on this socket. Their clients answer with
  // `generation` (Resumed.number), which is not 0.
  std::vector<ResumedSession> resumed;
  uint64_t generation = 0;
};

class SessionLoop;

// 16 random bytes, for one start of the daemon. An error: the system gives this
// process none.
absl::StatusOr<InstanceId> NewInstanceId();

// Serves the session socket until Shutdown.
//
// A session lives as long as its connection. When that ends in any way, or the
// process that made it dies, the engine's session is closed at once.
//
// Threads:  thread-safe. One thread of its own does everything: accepts,
//           receives, decodes, calls the engine, sends. It never blocks on a
//           client or the engine.
// Owns:     the sockets and that thread. Borrows the helpers and the engine,
//           which must outlive this object. Callbacks that these still hold
//           after Shutdown are harmless.
// Bounds:   `max_sessions`. Connections without a session, by `silent`: beyond
//           it, the oldest one of the user with the most is closed. Requests in
//           flight and unread replies, by `connection`.
// Restart:  nothing is kept. Clients connect again.
class SessionServer {
 public:
  static absl::StatusOr<std::unique_ptr<SessionServer>> Create(
      SessionServerOptions options, EngineApi& engine);
  ~SessionServer();  // As Shutdown.

  // Closes all sessions and the socket, and joins the thread. Idempotent. Not
  // from an engine callback.
  void Shutdown() ABSL_LOCKS_EXCLUDED(mu_);

 private:
  SessionServer(std::unique_ptr<SessionLoop> loop, std::thread thread);

  absl::Mutex mu_;  // Held while joining: a second Shutdown waits for it.
  std::unique_ptr<SessionLoop> loop_ ABSL_GUARDED_BY(mu_);
  std::thread thread_ ABSL_GUARDED_BY(mu_);
};

}  // namespace hoistd

#endif  // HOIST_DAEMON_SESSION_SESSION_SERVER_H_
