#ifndef HOIST_DAEMON_APP_SERVE_METRICS_H_
#define HOIST_DAEMON_APP_SERVE_METRICS_H_

#include <memory>

#include "absl/status/statusor.h"
#include "daemon/base/clock.h"
#include "daemon/config/config.h"
#include "daemon/engine/engine.h"
#include "daemon/host/host_pool.h"
#include "daemon/metrics/metrics_server.h"

namespace hoistd {

// Facts of this start for metrics.
struct MetricsStart {
  bool keeps = false;      // A supervisor holds hoistd's memory.
  bool stands_in = false;  // Emulated devices replace a GPU.
  // Borrowed.
  const HostPool* host = nullptr;
};

// Serves at metrics.listen and metrics.socket; nullptr: neither is set. Errors
// name the key. Borrows `engine` and `clock`.
absl::StatusOr<std::unique_ptr<MetricsServer>> ServeMetrics(
    const Config& config, const MetricsStart& start, Engine& engine,
    const Clock& clock);

}  // namespace hoistd

#endif  // HOIST_DAEMON_APP_SERVE_METRICS_H_
