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

// What of this start metrics tell.
struct MetricsStart {
  bool keeps = false;      // Something outlives hoistd.
  bool stands_in = false;  // Devices are emulated in the place of a GPU.
  // Borrowed.
  const HostPool* host = nullptr;
};

// As hoistd.toml has it; nullptr: nowhere. Errors name the key. `engine` and
// `clock` are borrowed.
absl::StatusOr<std::unique_ptr<MetricsServer>> ServeMetrics(
    const Config& config, const MetricsStart& start, Engine& engine,
    const Clock& clock);

}  // namespace hoistd

#endif  // HOIST_DAEMON_APP_SERVE_METRICS_H_
