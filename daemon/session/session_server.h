// The session socket: where libhoist meets the engine.
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

// Of connections on which OpenSession has not come yet.
struct SilentLimits {
  size_t of_uid = 32;
  size_t all = 256;
  absl::Duration deadline = absl::Seconds(10);
};

struct SessionServerOptions {
  // Where to make the socket; unused where `listen_fd` is given.
  SocketFileOptions socket;
  // A listening unix SOCK_SEQPACKET socket made by systemd.
  hoist::UniqueFd listen_fd;
  // Whose socket this is. nullopt: each user's who connects.
  std::optional<User> tenant;
  // Its members are admins, beside root and our own uid.
  std::optional<gid_t> admin_group;
  size_t max_sessions = 1024;
  // Of one message's body. Parsed, it takes many times as much for a moment.
  size_t max_request_bytes = hoist::kMaxRequestBody;
  SilentLimits silent;
  ConnectionLimits connection;
  // Receives what comes with descriptors, since even to close one may hang.
  // nullptr: they are taken as they come, of clients that can be trusted.
  IoHelpers* io_helpers = nullptr;
  const Clock* clock = nullptr;  // For `silent`; nullptr: the machine's.
  InstanceId instance_id = {};   // As NewInstanceId gives.
  // Sessions go on when hoistd ends, if their clients can.
  bool keeps = false;
  // Of this socket, those of the last hoistd that go on; and what their clients
  // are to answer (Resumed.number), not 0.
  std::vector<ResumedSession> resumed;
  uint64_t generation = 0;
};

class SessionLoop;

// 16 random bytes, for one start of the daemon. An error: this process may draw
// none.
absl::StatusOr<InstanceId> NewInstanceId();

// Serves the session socket until Shutdown.
//
// A session's life is its connection: when that ends, however it does, or the
// process that made it dies, the engine's session is closed at once.
//
// Threads:  thread-safe. One thread of its own does everything: accepts,
//           receives, decodes, calls the engine, sends. It never blocks on a
//           client or the engine.
// Owns:     the sockets and that thread. Borrows the helpers and the engine,
// which
//           must outlive this object; callbacks that these still hold after
//           Shutdown are harmless.
// Bounds:   `max_sessions`; connections without a session by `silent`: beyond
//           it the oldest goes, of whoever has most of them. What a client asks
//           for and does not take in, by `connection`.
// Restart:  nothing is kept. Clients connect again.
class SessionServer {
 public:
  static absl::StatusOr<std::unique_ptr<SessionServer>> Create(
      SessionServerOptions options, EngineApi& engine);
  ~SessionServer();  // As Shutdown.

  // Closes all sessions and the socket, and joins the thread. Again: nothing
  // happens. Not from an engine callback.
  void Shutdown() ABSL_LOCKS_EXCLUDED(mu_);

 private:
  SessionServer(std::unique_ptr<SessionLoop> loop, std::thread thread);

  absl::Mutex mu_;  // Held while joining: a second Shutdown waits for it.
  std::unique_ptr<SessionLoop> loop_ ABSL_GUARDED_BY(mu_);
  std::thread thread_ ABSL_GUARDED_BY(mu_);
};

}  // namespace hoistd

#endif  // HOIST_DAEMON_SESSION_SESSION_SERVER_H_
