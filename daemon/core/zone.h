#ifndef HOIST_DAEMON_CORE_ZONE_H_
#define HOIST_DAEMON_CORE_ZONE_H_

#include <compare>
#include <cstdint>

#include "daemon/types/device.h"

namespace hoistd {

// Images that may share a slab.
struct Zone {
  static constexpr uint64_t kEveryone = UINT64_MAX;

  uint64_t readers = 0;  // A user's number, or kEveryone.
  Backing backing = Backing::kMemfd;
  bool apart = false;  // Images share no slab at all: see SlabSpec.
  // Of arenas: a slab that a worker could write to never holds weights.
  bool writable = false;

  auto operator<=>(const Zone&) const = default;
};

}  // namespace hoistd

#endif  // HOIST_DAEMON_CORE_ZONE_H_
