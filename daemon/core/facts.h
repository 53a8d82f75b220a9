// What does not change while hoistd runs, and what an operator should know.
#ifndef HOIST_DAEMON_CORE_FACTS_H_
#define HOIST_DAEMON_CORE_FACTS_H_

#include <cstdint>
#include <string>
#include <vector>

#include "absl/time/time.h"
#include "daemon/terms/device.h"
#include "daemon/terms/io_engine.h"

namespace hoistd {

// What a device looks like to clients.
struct DeviceView {
  DeviceInfo info;
  uint64_t pool_bytes = 0;
  uint64_t slab_bytes = 0;
};

// What does not change while the daemon runs, and the state of its I/O.
struct NodeFacts {
  std::string version;
  absl::Time started;               // By the engine's clock.
  std::vector<DeviceView> devices;  // The one that is in place comes last.
  std::string no_in_place;          // Why there is none.
  IoInfo io;
  bool direct_io = false;
};

// What an operator should know.
struct NodeNotes {
  std::vector<std::string> notes;
  uint64_t dropped = 0;  // That newer ones have pushed out.
};

}  // namespace hoistd

#endif  // HOIST_DAEMON_CORE_FACTS_H_
