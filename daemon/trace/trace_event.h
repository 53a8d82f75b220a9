// The contents of a recording, as plain values.
#ifndef HOIST_DAEMON_TRACE_TRACE_EVENT_H_
#define HOIST_DAEMON_TRACE_TRACE_EVENT_H_

#include <cstddef>
#include <cstdint>
#include <string>

#include "absl/time/time.h"
#include "daemon/types/ids.h"

namespace hoistd {

enum class TraceKind : uint8_t {
  // On a device's link, in sequence, as its thread saw them.
  kCopyIn,   // Host to device.
  kCopyOut,  // Device to host.
  kLinkGap,  // Neither, and no grant, for a millisecond or more.
  // A worker's own copies, beside those.
  kGrantedCopy,  // To the device: from its grant until it said it was done.
  kOwnRead,      // From the device, between two looks.
  // Transfers of a group's bytes without a link.
  kFileRead,
  kSpillRead,
  kSpillWrite,
  kPageIn,   // From pageable memory to the pool.
  kPageOut,  // And back.
  kCheck,    // Read to be compared, on the host or on the disk.
  kReceive,  // From a client that publishes.
  kDeliver,  // To a client's memory.
  // From a request to its answer, if that was not immediate.
  kStage,
  kReadImage,
  kPublish,
  kSetPlan,
  kBring,  // A load's or a pin's.
  // A plan's lane.
  kLaneWait,  // The client waits for a group.
  kLaneGap,   // It does, and nothing of the lane is under way.
  kHostWait,  // A load is due and its group is not on the host.
  // Work of the engine's thread that delayed others.
  kSlowEvent,
  // Bytes in use from `begin` on.
  kHostUsed,
  kDeviceUsed,
};

// Why no load of a lane, or no copy of a link, is in flight.
enum class TraceWhy : uint8_t {
  kNotDue,  // What was asked for is there, or not known yet.
  kNotOnHost,
  kPlaceInUse,  // Another group lies in its place, and is not done.
  kNotDone,     // The kernels of its own last position run.
  kTurn,        // Other copies run, or a cap delays it.
  // A link's alone.
  kPinning,  // Its source is being registered with the device.
  kDriver,   // A driver call, or other work of the link's thread, took so long.
  kThread,   // A copy was due, and the thread was not run, or napped.
};
inline constexpr size_t kTraceWhys = size_t(TraceWhy::kThread) + 1;

// An id of 0 means none.
struct TraceEvent {
  TraceKind kind = TraceKind::kCopyIn;
  TraceWhy why = TraceWhy::kNotDue;  // kLaneGap, kLinkGap.
  bool failed = false;
  bool background = false;  // It has no waiter.
  // Begun and not ended: a later event of the same kind, plan and request
  // reports the end, unless the recording ends first.
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

// Names of ids, each reported once.
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
