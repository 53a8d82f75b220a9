#ifndef HOIST_DAEMON_CORE_ZONE_H_
#define HOIST_DAEMON_CORE_ZONE_H_

#include <compare>
#include <cstdint>

#include "daemon/terms/device.h"

namespace hoistd {

// Images that may share a slab. `readers` stands for who may read them.
struct Zone {
  static constexpr uint64_t kEveryone = UINT64_MAX;

  uint64_t readers = 0;  // A user's number, or kEveryone.
  Backing backing = Backing::kMemfd;
  bool apart = false;  // Not even with one another: see SlabSpec.
  // Of arenas: a slab that a worker could write to is never one of weights.
  bool writable = false;

  auto operator<=>(const Zone&) const = default;
};

}  // namespace hoistd

#endif  // HOIST_DAEMON_CORE_ZONE_H_
