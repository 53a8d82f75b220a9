// HTTP for scrapers: GET /metrics, on a unix socket and on loopback.
#ifndef HOIST_DAEMON_METRICS_METRICS_SERVER_H_
#define HOIST_DAEMON_METRICS_METRICS_SERVER_H_

#include <sys/types.h>

#include <cstddef>
#include <functional>
#include <memory>
#include <optional>
#include <string>

#include "absl/status/statusor.h"
#include "absl/time/time.h"
#include "daemon/base/clock.h"
#include "daemon/base/loopback_address.h"
#include "daemon/core/measure.h"
#include "daemon/engine/engine_api.h"
#include "daemon/metrics/exposition.h"
#include "daemon/socket/listening_socket.h"

namespace hoistd {

struct MetricsLimits {
  // Once there are so many, the oldest of the user that has most is closed for
  // a new one. Over TCP all are one user.
  size_t connections = 32;
  // From its first byte to its last: a connection that is not done is closed.
  absl::Duration connection = absl::Seconds(10);
  // What the engine has not told by then is a 503.
  absl::Duration engine = absl::Seconds(5);
  // So long one picture does for all who ask.
  absl::Duration fresh = absl::Milliseconds(500);
  size_t head_bytes = 8192;
};

struct MetricsOptions {
  std::optional<SocketFileOptions> socket;  // `type` is the server's.
  // Who may read there, beside root and hoistd's own user, as Admin has it; in
  // messages by its name. On loopback everybody may.
  std::optional<gid_t> admin_group;
  std::string admin_group_name;
  std::optional<LoopbackAddress> listen;
  // Asks for a picture. `done` is called once, from any thread, perhaps after
  // this server's end.
  std::function<void(Done<NodeMeasure> done)> measure;
  // Makes the text of it, on the server's thread.
  std::function<std::string(const NodeMeasure&, MetricsFormat)> render;
  MetricsLimits limits;
};

// Threads:  Create and the destructor from one thread; one of its own, which
//           waits in poll alone.
// Owns:     its sockets and connections. Borrows the clock.
// Bounds:   limits. One picture at a time is asked for, whoever asks, and none
//           while the last is fresh.
class MetricsServer {
 public:
  // FailedPrecondition, InvalidArgument: as ListeningSocket. The address may be
  // taken, or TCP be forbidden: the text names the remedy.
  static absl::StatusOr<std::unique_ptr<MetricsServer>> Create(
      MetricsOptions options, const Clock& clock);
  virtual ~MetricsServer() = default;  // Closes what is open.
};

}  // namespace hoistd

#endif  // HOIST_DAEMON_METRICS_METRICS_SERVER_H_
