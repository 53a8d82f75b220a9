// hoistd's metrics as text; README.md says how they are bounded.
#ifndef HOIST_DAEMON_METRICS_NODE_METRICS_H_
#define HOIST_DAEMON_METRICS_NODE_METRICS_H_

#include <cstdint>
#include <string>
#include <utility>
#include <vector>

#include "daemon/core/facts.h"
#include "daemon/core/measure.h"
#include "daemon/metrics/exposition.h"
#include "daemon/metrics/process_stats.h"

namespace hoistd {

// Constants while hoistd runs.
struct MetricsFacts {
  NodeFacts node;
  std::string revision;  // Of the source.
  // Features that a machine may lack, and whether this one does.
  std::vector<std::pair<std::string, bool>> degraded;
};

std::string RenderMetrics(const MetricsFacts& facts, uint64_t notes,
                          const NodeMeasure& node, const ProcessStats& process,
                          MetricsFormat format);

// A device's label: its UUID in nvidia-smi's form, or "emulated-0". Empty:
// in-place memory.
std::string DeviceLabel(const DeviceInfo& info);

}  // namespace hoistd

#endif  // HOIST_DAEMON_METRICS_NODE_METRICS_H_
