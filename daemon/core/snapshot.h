// One picture of the node, at one moment: behind hoistctl, Watch and metrics.
#ifndef HOIST_DAEMON_CORE_SNAPSHOT_H_
#define HOIST_DAEMON_CORE_SNAPSHOT_H_

#include <array>
#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "absl/time/time.h"
#include "daemon/base/time_histogram.h"
#include "daemon/core/residency.h"
#include "daemon/model/tensor.h"
#include "daemon/plan/link_share.h"
#include "daemon/terms/ids.h"
#include "daemon/terms/tier.h"

namespace hoistd {

// A named holder of bytes of a tier.
struct Holder {
  std::string name;  // "minilm/encoder.layer.0".
  uint64_t bytes = 0;
};

struct TierSnapshot {
  TierAt at;
  uint64_t capacity_bytes = 0;
  uint64_t used_bytes = 0;  // The sum of `holders`.
  uint64_t leased_bytes = 0;
  uint64_t pinned_bytes = 0;
  uint64_t largest_free_bytes = 0;
  uint64_t allocated_bytes = 0;  // Device: in slabs. Host: ready.
  // Host: what groups of other groupings use of what lies there once; it would
  // take so much more.
  uint64_t shared_bytes = 0;
  // Device: of files' bytes, what lies there once more for other groupings.
  uint64_t doubled_bytes = 0;
  uint64_t unsaved_bytes = 0;  // Host: published, and on no disk.
  // In place: of arenas, and what is kept of earlier ones for the next.
  uint64_t arena_bytes = 0;
  uint64_t kept_arena_bytes = 0;
  std::vector<Holder> holders;
};

struct CopySnapshot {
  TierAt at;
  Residency residency = Residency::kAbsent;
  uint32_t leases = 0;
  bool pinned = false;
};

struct GroupSnapshot {
  std::string name;
  GroupIndex index;
  uint64_t image_bytes = 0;
  uint32_t tensors = 0;
  std::vector<CopySnapshot> copies;  // Those that are not absent.
};

struct ModelSnapshot {
  ModelId id;
  std::string name;
  Fingerprint fingerprint = {};
  Readers readers = Readers::kOwner;
  User owner;
  uint64_t image_bytes = 0;
  bool published = false;
  std::vector<std::string> files;
  std::vector<GroupSnapshot> groups;
};

struct SessionSnapshot {
  SessionId id;
  std::string client_name;
  std::string via;  // "socket", "grpc".
  User uid;
  int32_t pid = 0;
  absl::Duration age;
  uint32_t leases = 0;
  uint64_t leased_bytes = 0;
  uint64_t device_budget_bytes = 0;
  uint32_t waiting = 0;
  uint32_t plans = 0;
  uint32_t arenas = 0;
  uint64_t arena_bytes = 0;
};

struct PlanSnapshot {
  PlanId id;
  SessionId session;
  std::string client_name;
  std::string model;
  DeviceIndex device;
  uint64_t budget_bytes = 0;
  uint64_t resident_bytes = 0;
  uint64_t ring_bytes = 0;
  uint64_t streamed_bytes = 0;  // A pass.
  uint64_t held_bytes = 0;      // On the host.
  uint32_t groups = 0;
  uint32_t streamed_groups = 0;
  uint32_t lead = 0;
  // What the lane did; the engine adds it.
  ShareOptions share;
  uint64_t copied_bytes = 0;
  uint64_t bytes_per_second = 0;
  uint64_t loads = 0;
  uint64_t served_in_place = 0;
  uint64_t skipped = 0;
  uint64_t wasted_loads = 0;
  uint64_t host_waits = 0;
  bool captured = false;
};

struct Counters {
  uint64_t file_read_bytes = 0;
  uint64_t spill_read_bytes = 0;
  uint64_t spill_written_bytes = 0;
  uint64_t host_to_device_bytes = 0;
  uint64_t device_to_host_bytes = 0;
  // Of what is read in place, as workers tell: on devices, and over links.
  uint64_t touched_hot_bytes = 0;
  uint64_t touched_cold_bytes = 0;
  // Of arenas: made for one, and kept from an earlier one.
  uint64_t arena_made_bytes = 0;
  uint64_t arena_reused_bytes = 0;
  uint64_t stages = 0;
  uint64_t stages_resident = 0;
  uint64_t stages_refused = 0;
  uint64_t device_evictions = 0;
  uint64_t host_evictions = 0;
  // By admins; those above made room.
  uint64_t device_evictions_by_admins = 0;
  uint64_t host_evictions_by_admins = 0;
  // From when a lease was asked for until it was given, by the tier that had
  // the bytes nearest then: on the device itself, or copied, or read.
  std::array<TimeHistogram, 3> stage_times;  // By Tier.
  uint64_t models_forgotten = 0;  // To make room, not because it was asked for.
  // Of the engine's one thread: who asks meanwhile waits.
  uint64_t slow_events = 0;  // Longer than Engine::kSlowEvent.
  absl::Duration longest_event;
};

// As its worker tells.
struct CopierSnapshot {
  CopierId id;
  SessionId session;
  std::string client_name;
  ShareOptions share;
  uint64_t copied_bytes = 0;  // To the device.
  uint64_t read_bytes = 0;    // From it.
  uint64_t grants = 0;
  uint64_t late_grants = 0;
};

// What was copied to a device, and for whom (LinkClass).
struct LinkSnapshot {
  DeviceIndex device;
  uint64_t plan_bytes = 0;
  uint64_t lease_bytes = 0;
  uint64_t background_bytes = 0;
  // By workers themselves, as they tell: to the device, and from it.
  uint64_t own_bytes = 0;
  uint64_t own_read_bytes = 0;
  std::vector<CopierSnapshot> copiers;  // That are open.
  uint64_t bytes_per_second = 0;        // While anything was copied, of late.
  uint64_t read_bytes_per_second = 0;   // By kernels, beside that, of late.
  uint64_t load_max_bytes_per_second = 0;  // 0: no cap.
};

struct NodeSnapshot {
  bool draining = false;
  std::vector<TierSnapshot> tiers;
  std::vector<ModelSnapshot> models;
  std::vector<SessionSnapshot> sessions;
  std::vector<PlanSnapshot> plans;
  std::vector<LinkSnapshot> links;
  Counters counters;
};

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
  kDraining,  // No new work is taken,
  kResumed,   // until this.
  kMissed,    // Events that a watcher read too slowly for.
};

// "session-opened", ...
const char* ToString(EventKind kind);

// What happened, for Watch.
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

#endif  // HOIST_DAEMON_CORE_SNAPSHOT_H_
