// The node's metrics: sums of a size independent of what the node holds.
#ifndef HOIST_DAEMON_CORE_MEASURE_H_
#define HOIST_DAEMON_CORE_MEASURE_H_

#include <array>
#include <cstddef>
#include <cstdint>
#include <string>
#include <vector>

#include "daemon/base/time_histogram.h"
#include "daemon/core/counters.h"
#include "daemon/types/ids.h"
#include "daemon/types/tier.h"
#include "daemon/types/user.h"

namespace hoistd {

// Why bytes stay in a tier; the first reason that applies.
enum class Holding {
  kHot,       // On a device, for weights in place.
  kResident,  // Promised to a plan.
  kLeased,
  kRing,     // Plans stream through it.
  kArena,    // Workers write to it.
  kHeld,     // On the host, for plans.
  kPinned,   // By an admin.
  kMoving,   // Being filled, or read by a copy.
  kUnsaved,  // Published, and not on disk.
  kCache,    // Nothing: evicted when its place is needed.
};
inline constexpr size_t kHoldings = 10;

// "in_place_hot", ...
const char* ToString(Holding holding);

struct TierMeasure {
  TierAt at;
  uint64_t capacity_bytes = 0;
  uint64_t used_bytes = 0;       // The sum of `held`.
  uint64_t allocated_bytes = 0;  // As in TierUse, like the next.
  uint64_t largest_free_bytes = 0;
  std::array<uint64_t, kHoldings> held = {};  // By Holding.

  uint64_t& of(Holding holding) { return held[static_cast<size_t>(holding)]; }
};

struct ModelMeasure {
  ModelId id;
  User owner;
  std::string name;
  uint64_t device_bytes = 0;  // Without in-place memory, but with hot pieces.
  uint64_t in_place_bytes = 0;
  uint64_t host_bytes = 0;
  uint64_t disk_bytes = 0;  // Spilled.
};

// Bytes copied to a device, by LinkClass.
struct LinkStats {
  DeviceIndex device;
  uint64_t plan_bytes = 0;
  uint64_t lease_bytes = 0;
  uint64_t background_bytes = 0;
  // Copied by workers, as they report: to the device, and from it.
  uint64_t own_bytes = 0;
  uint64_t own_read_bytes = 0;
  uint64_t bytes_per_second = 0;           // While copying, of late.
  uint64_t read_bytes_per_second = 0;      // Read by kernels besides, of late.
  uint64_t load_max_bytes_per_second = 0;  // 0: no cap.
};

// What the engine and its other threads count.
struct EngineStats {
  std::vector<LinkStats> links;  // By device.
  struct Waits {                 // Of a device's plans, for streamed groups.
    double seconds = 0;
    uint64_t count = 0;
    uint64_t host_waits = 0;
    uint64_t loads = 0;
    uint64_t wasted_loads = 0;
  };
  std::vector<Waits> waits;  // By device.
  uint64_t events = 0;
  TimeHistogram slow_events;
  std::array<uint64_t, 17> refused = {};  // By absl::StatusCode.
};

struct NodeMeasure {
  bool draining = false;
  bool disk_full = false;      // While something is to be written.
  uint64_t unsaved_bytes = 0;  // Published, and not on disk.
  std::vector<TierMeasure> tiers;
  std::vector<ModelMeasure> models;  // The largest, by id.
  ModelMeasure other_models;         // The rest, summed.
  uint64_t model_count = 0;
  uint64_t sessions = 0;
  uint64_t leases = 0;
  uint64_t plans = 0;
  uint64_t waiting_plans = 0;  // For their rings.
  Counters counters;
  EngineStats engine;
};

}  // namespace hoistd

#endif  // HOIST_DAEMON_CORE_MEASURE_H_
