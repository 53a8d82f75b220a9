// Events of the node, for Watch.
#ifndef HOIST_DAEMON_CORE_NODE_EVENT_H_
#define HOIST_DAEMON_CORE_NODE_EVENT_H_

#include <cstdint>
#include <optional>
#include <string>

#include "daemon/types/ids.h"
#include "daemon/types/tier.h"

namespace hoistd {

enum class EventKind {
  kSessionOpened,
  kSessionClosed,
  kModelAdded,
  kModelForgotten,
  kCopyPresent,
  kCopyFailed,
  kCopyDropped,
  kCopyLost,
  kStageRefused,
  kPlanSet,
  kPlanEnded,
  kArenaOpened,
  kArenaClosed,
  kSlabsHeldOpen,
  kDiskFull,      // No more spills,
  kDiskWritable,  // until this.
  kDraining,      // No new work,
  kResumed,       // until this.
  kMissed,        // Dropped for a slow watcher.
};

// "session-opened", ...
const char* ToString(EventKind kind);

struct NodeEvent {
  EventKind kind = EventKind::kMissed;
  std::string model;
  std::string group;
  std::optional<TierAt> at;
  SessionId session;
  uint64_t bytes = 0;
  std::string detail;
};

}  // namespace hoistd

#endif  // HOIST_DAEMON_CORE_NODE_EVENT_H_
