// What metrics say of the node: sums alone, of a size that does not grow with
// what it holds.
#ifndef HOIST_DAEMON_CORE_MEASURE_H_
#define HOIST_DAEMON_CORE_MEASURE_H_

#include <array>
#include <cstddef>
#include <cstdint>
#include <string>
#include <vector>

#include "daemon/base/time_histogram.h"
#include "daemon/core/snapshot.h"
#include "daemon/terms/ids.h"
#include "daemon/terms/tier.h"
#include "daemon/terms/user.h"

namespace hoistd {

// What keeps bytes of a tier where they are; the first of these that does.
enum class Holding {
  kHot,       // On a device, of what is read in place.
  kResident,  // Promised to a plan.
  kLeased,
  kRing,     // Plans stream through it.
  kArena,    // Workers write to it.
  kHeld,     // On the host, for plans' copies.
  kPinned,   // By an admin.
  kMoving,   // Being filled, or read by a copy.
  kUnsaved,  // Published, and on no disk.
  kCache,    // Nothing: it goes when its place is needed.
};
inline constexpr size_t kHoldings = 10;

// "in_place_hot", ...
const char* ToString(Holding holding);

struct TierMeasure {
  TierAt at;
  uint64_t capacity_bytes = 0;
  uint64_t used_bytes = 0;       // The sum of `held`.
  uint64_t allocated_bytes = 0;  // As in TierSnapshot, like the next.
  uint64_t largest_free_bytes = 0;
  std::array<uint64_t, kHoldings> held = {};  // By Holding.

  uint64_t& of(Holding holding) { return held[static_cast<size_t>(holding)]; }
};

struct ModelMeasure {
  ModelId id;
  User owner;
  std::string name;
  uint64_t device_bytes = 0;  // What is read in place is on none, but hot.
  uint64_t in_place_bytes = 0;
  uint64_t host_bytes = 0;
  uint64_t disk_bytes = 0;  // Spilled.
};

struct NodeMeasure {
  bool draining = false;
  std::vector<TierMeasure> tiers;
  std::vector<ModelMeasure> models;  // Those that use most, by id.
  ModelMeasure other_models;         // The rest, summed.
  uint64_t model_count = 0;
  uint64_t sessions = 0;
  uint64_t leases = 0;
  uint64_t plans = 0;
  uint64_t waiting_plans = 0;  // For their rings.
  Counters counters;
  // Of the engine, which fills these in.
  std::vector<LinkSnapshot> links;
  struct Waits {  // Of plans on a device, for what they stream.
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

}  // namespace hoistd

#endif  // HOIST_DAEMON_CORE_MEASURE_H_
