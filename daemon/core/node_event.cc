#include "daemon/core/node_event.h"

namespace hoistd {

const char* ToString(EventKind kind) {
  switch (kind) {  // No default: a new kind must fail to compile here.
    case EventKind::kSessionOpened:
      return "session-opened";
    case EventKind::kSessionClosed:
      return "session-closed";
    case EventKind::kModelAdded:
      return "model-added";
    case EventKind::kModelForgotten:
      return "model-forgotten";
    case EventKind::kCopyPresent:
      return "copy-present";
    case EventKind::kCopyFailed:
      return "copy-failed";
    case EventKind::kCopyDropped:
      return "copy-dropped";
    case EventKind::kCopyLost:
      return "copy-lost";
    case EventKind::kStageRefused:
      return "stage-refused";
    case EventKind::kPlanSet:
      return "plan-set";
    case EventKind::kPlanEnded:
      return "plan-ended";
    case EventKind::kArenaOpened:
      return "arena-opened";
    case EventKind::kArenaClosed:
      return "arena-closed";
    case EventKind::kSlabsHeldOpen:
      return "slabs-held-open";
    case EventKind::kDiskFull:
      return "disk-full";
    case EventKind::kDiskWritable:
      return "disk-writable";
    case EventKind::kDraining:
      return "draining";
    case EventKind::kResumed:
      return "resumed";
    case EventKind::kMissed:
      return "missed";
  }
  return "?";
}

}  // namespace hoistd
