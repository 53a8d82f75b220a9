// One hoistd, from its start to its death.
#ifndef HOIST_TESTS_SIM_SYSTEM_SIM_LIFE_H_
#define HOIST_TESTS_SIM_SYSTEM_SIM_LIFE_H_

#include <cstddef>
#include <functional>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include "daemon/engine/engine.h"
#include "daemon/keeper/keep.h"
#include "daemon/link/link.h"
#include "tests/sim/system/sim_device.h"
#include "tests/sim/system/sim_io.h"
#include "tests/sim/system/sim_threads.h"
#include "tests/support/holding_store.h"

namespace hoistd::sim {

// Parts that exist before it starts and after its end.
struct LifeParts {
  const SimClock* clock = nullptr;
  std::function<bool()> pump;    // As SimThreads.
  SimIo::OnWrite on_host_write;  // As SimIo.
  std::span<std::byte> host;     // The host pool, which outlives it.
  std::vector<SimDevice*> devices;
  testing::HoldingStore* store = nullptr;  // nullptr: nothing is kept.
  NodeOptions node;                        // Its devices are filled in.
};

// The contents of its process. A killed one is never destroyed: a real process
// runs no destructors either, and they would wait for work in flight.
struct Life {
  explicit Life(LifeParts with);

  // Starts as hoistd.cc does.
  void Begin();

  LifeParts parts;
  SimThreads threads;
  SimIo io;
  std::optional<Keep> keep;
  // The state of its predecessor that it refused to take over, in its own
  // words.
  std::vector<std::string> refused;
  std::vector<std::unique_ptr<Link>> links;
  std::unique_ptr<Engine> engine;

 private:
  void TakeOver(EngineParts& parts_of_engine);
};

}  // namespace hoistd::sim

#endif  // HOIST_TESTS_SIM_SYSTEM_SIM_LIFE_H_
