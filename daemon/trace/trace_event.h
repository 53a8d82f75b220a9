// What a recording has, as plain values.
#ifndef HOIST_DAEMON_TRACE_TRACE_EVENT_H_
#define HOIST_DAEMON_TRACE_TRACE_EVENT_H_

#include <cstdint>
#include <string>

#include "absl/time/time.h"
#include "daemon/types/ids.h"

namespace hoistd {

enum class TraceKind : uint8_t {
  // Over a device's link, one after another; as its thread saw it.
  kCopyIn,   // Host to device.
  kCopyOut,  // Device to host.
  // Copies that a worker makes itself, beside those.
  kGrantedCopy,  // To the device: from its grant until it said it was done.
  kOwnRead,      // From the device, between two looks.
  // A group's bytes, carried without a link.
  kFileRead,
  kSpillRead,
  kSpillWrite,
  kCheck,    // Read to be compared, on the host or on the disk.
  kReceive,  // From a client that publishes.
  kDeliver,  // To a client's memory.
  // From a request to its answer, where that did not come at once.
  kStage,
  kReadImage,
  kPublish,
  kSetPlan,
  kBring,  // A load's or a pin's.
  // A plan's lane.
  kLaneWait,  // The client waits for a group.
  kLaneGap,   // It does, and nothing of the lane is under way.
  kHostWait,  // A load is due and its group is not on the host.
  // Something that the engine's thread did, others waiting.
  kSlowEvent,
  // Bytes from `begin` on.
  kHostUsed,
  kDeviceUsed,
};

// Why nothing of a lane is under way.
enum class TraceWhy : uint8_t {
  kUnknown,
  kNotOnHost,
  kPlaceInUse,  // Another group lies in its place, and is not done.
  kNotDone,     // The kernels of its own last position run.
  kTurn,        // Others copy, or a cap holds it back.
};

// Ids that are 0 name nothing.
struct TraceEvent {
  TraceKind kind = TraceKind::kCopyIn;
  TraceWhy why = TraceWhy::kUnknown;  // kLaneGap.
  bool failed = false;
  bool background = false;  // Nobody waits for it.
  // It has begun and not ended: another one of the same kind, plan and request
  // tells its end, or it lasts longer than the recording.
  bool open = false;
  GroupIndex group;  // Of `model`.
  DeviceIndex device;
  absl::Time begin = absl::InfinitePast();  // Before the recording: unknown.
  absl::Time end = absl::InfinitePast();
  uint64_t bytes = 0;
  ModelId model;
  SessionId session;
  PlanId plan;
  RequestId request;
};

// What ids mean, told once each.
struct TraceSession {
  SessionId id;
  std::string client_name;
  std::string via;
  User user;
  int32_t pid = 0;
};
struct TracePlan {
  PlanId id;
  SessionId session;
  ModelId model;
  DeviceIndex device;
};
struct TraceModel {
  ModelId id;
  std::string name;
};
struct TraceGroup {
  GroupKey key;
  std::string name;
};

}  // namespace hoistd

#endif  // HOIST_DAEMON_TRACE_TRACE_EVENT_H_
