// What a reader of the node sees (LookArgs): the books, and the figures of the
// engine's other threads.
#ifndef HOIST_DAEMON_ENGINE_NODE_VIEW_H_
#define HOIST_DAEMON_ENGINE_NODE_VIEW_H_

#include <vector>

#include "absl/time/time.h"
#include "daemon/core/counters.h"
#include "daemon/core/measure.h"
#include "daemon/core/node.h"
#include "daemon/permit/copy_permit.h"
#include "daemon/stream/lane_board.h"

namespace hoistd {

// Valid for one event, and on its thread.
struct NodeView {
  const Node& node;
  absl::Time now;
  Counters counters;  // The node's, the engine's and the links'.
  EngineStats engine;
  std::vector<std::vector<PermitStats>> permits;  // By device: open ones.
  std::vector<LaneStats> lanes;                   // Of all devices' plans.
};

}  // namespace hoistd

#endif  // HOIST_DAEMON_ENGINE_NODE_VIEW_H_
