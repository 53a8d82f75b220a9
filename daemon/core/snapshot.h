// A snapshot of the node: behind hoistctl, Watch and metrics.
#ifndef HOIST_DAEMON_CORE_SNAPSHOT_H_
#define HOIST_DAEMON_CORE_SNAPSHOT_H_

#include <array>
#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "absl/time/time.h"
#include "daemon/core/counters.h"
#include "daemon/core/residency.h"
#include "daemon/model/tensor.h"
#include "daemon/plan/link_share.h"
#include "daemon/types/ids.h"
#include "daemon/types/tier.h"

namespace hoistd {

// A named holder of a tier's bytes.
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
  // Host: bytes saved by sharing between groups of different groupings.
  uint64_t shared_bytes = 0;
  // Device: bytes of files that lie there again for other groupings.
  uint64_t doubled_bytes = 0;
  uint64_t unsaved_bytes = 0;  // Host: published, and not on disk.
  // Disk: how long it has had no room for those; 0: it has room.
  absl::Duration full_for;
  // In place: of arenas, open or kept for reuse.
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
  std::vector<std::string> block_types;  // Its tensors', each once, sorted.
  std::vector<CopySnapshot> copies;      // Without absent ones.
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
  uint32_t missing_groups = 0;  // As ModelEntry::missing.
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
  uint64_t streamed_bytes = 0;  // Per pass.
  uint64_t held_bytes = 0;      // On the host.
  uint32_t groups = 0;
  uint32_t streamed_groups = 0;
  uint32_t lead = 0;
  // The lane's activity, added by the engine.
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

// As its worker reports.
struct PermitSnapshot {
  PermitId id;
  SessionId session;
  std::string client_name;
  ShareOptions share;
  uint64_t copied_bytes = 0;  // To the device.
  uint64_t read_bytes = 0;    // From it.
  uint64_t grants = 0;
  uint64_t late_grants = 0;
};

// Bytes copied to a device, by LinkClass.
struct LinkSnapshot {
  DeviceIndex device;
  uint64_t plan_bytes = 0;
  uint64_t lease_bytes = 0;
  uint64_t background_bytes = 0;
  // Copied by workers, as they report: to the device, and from it.
  uint64_t own_bytes = 0;
  uint64_t own_read_bytes = 0;
  std::vector<PermitSnapshot> permits;     // Open ones.
  uint64_t bytes_per_second = 0;           // While copying, of late.
  uint64_t read_bytes_per_second = 0;      // Read by kernels besides, of late.
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
  kDiskFull,      // No more spills,
  kDiskWritable,  // until this.
  kDraining,      // No new work,
  kResumed,       // until this.
  kMissed,        // Dropped for a slow watcher.
};

// "session-opened", ...
const char* ToString(EventKind kind);

// An event for Watch.
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
