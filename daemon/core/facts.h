// Facts that stay while hoistd runs, and notes for an operator.
#ifndef HOIST_DAEMON_CORE_FACTS_H_
#define HOIST_DAEMON_CORE_FACTS_H_

#include <cstdint>
#include <string>
#include <vector>

#include "absl/time/time.h"
#include "daemon/types/device.h"
#include "daemon/types/io_engine.h"

namespace hoistd {

// A device as clients see it.
struct DeviceView {
  DeviceInfo info;
  uint64_t pool_bytes = 0;
  uint64_t slab_bytes = 0;
};

// Facts that stay while the daemon runs, and the state of its I/O.
struct NodeFacts {
  std::string version;
  absl::Time started;               // By the engine's clock.
  std::vector<DeviceView> devices;  // Last the one in place.
  std::string no_in_place;          // Why none is in place.
  IoInfo io;
  bool direct_io = false;
};

// Notes for an operator.
struct NodeNotes {
  std::vector<std::string> notes;
  uint64_t dropped = 0;  // Pushed out by newer ones.
};

}  // namespace hoistd

#endif  // HOIST_DAEMON_CORE_FACTS_H_
