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
  // At this number, a new connection closes the oldest one of the user with the
  // most. Over TCP all clients count as one user.
  size_t connections = 32;
  // Limit from first to last byte; then the connection is closed.
  absl::Duration connection = absl::Seconds(10);
  // If the engine has not answered by then, the response is 503.
  absl::Duration engine = absl::Seconds(5);
  // One snapshot serves all requests for this long.
  absl::Duration fresh = absl::Milliseconds(500);
  size_t head_bytes = 8192;
};

struct MetricsOptions {
  std::optional<SocketFileOptions> socket;  // `type` is the server's.
  // Readers there: root, hoistd's own user, and members of this group, as for
  // Admin; messages use its name. On loopback everyone may read.
  std::optional<gid_t> admin_group;
  std::string admin_group_name;
  std::optional<LoopbackAddress> listen;
  // Requests a snapshot. `done` is called once, from any thread, perhaps after
  // the end of this server.
  std::function<void(Done<NodeMeasure> done)> measure;
  // Renders the snapshot, on the server's thread.
  std::function<std::string(const NodeMeasure&, MetricsFormat)> render;
  MetricsLimits limits;
};

// Threads:  Create and the destructor from one thread; one of its own, which
//           only waits in poll.
// Owns:     its sockets and connections. Borrows the clock.
// Bounds:   limits. At most one snapshot is requested at a time, and none while
//           the last one is fresh.
class MetricsServer {
 public:
  // FailedPrecondition, InvalidArgument: as ListeningSocket. If the address is
  // taken, or TCP is forbidden, the message names the remedy.
  static absl::StatusOr<std::unique_ptr<MetricsServer>> Create(
      MetricsOptions options, const Clock& clock);
  virtual ~MetricsServer() = default;  // Closes all connections.
};

}  // namespace hoistd

#endif  // HOIST_DAEMON_METRICS_METRICS_SERVER_H_
