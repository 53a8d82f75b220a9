// What hoistd tells scrapers, in words: README.md says how it is bounded.
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

// What does not change while hoistd runs.
struct MetricsFacts {
  NodeFacts node;
  std::string revision;  // Of the source.
  // What this machine could not give, and whether it is so here.
  std::vector<std::pair<std::string, bool>> degraded;
};

std::string RenderMetrics(const MetricsFacts& facts, uint64_t notes,
                          const NodeMeasure& node, const ProcessStats& process,
                          MetricsFormat format);

// How a device is told from others: by its UUID, as nvidia-smi writes it, or
// "emulated-0". Empty: memory that is read in place.
std::string DeviceLabel(const DeviceInfo& info);

}  // namespace hoistd

#endif  // HOIST_DAEMON_METRICS_NODE_METRICS_H_
