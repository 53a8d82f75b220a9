// One hoistd, from its beginning to its death.
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

// What there is before it begins, and when it is gone.
struct LifeParts {
  const SimClock* clock = nullptr;
  std::function<bool()> pump;    // As SimThreads.
  SimIo::OnWrite on_host_write;  // As SimIo.
  std::span<std::byte> host;     // The host pool, which outlives it.
  std::vector<SimDevice*> devices;
  testing::HoldingStore* store = nullptr;  // nullptr: nothing is kept.
  NodeOptions node;                        // Its devices are filled in.
};

// What goes with its process. One that was killed is not destroyed: nobody does
// that for a process either, and it would wait for what it has under way.
struct Life {
  explicit Life(LifeParts with);

  // As hoistd.cc begins.
  void Begin();

  LifeParts parts;
  SimThreads threads;
  SimIo io;
  std::optional<Keep> keep;
  // What it could not take over from the one before, as it says.
  std::vector<std::string> refused;
  std::vector<std::unique_ptr<Link>> links;
  std::unique_ptr<Engine> engine;

 private:
  void TakeOver(EngineParts& parts_of_engine);
};

}  // namespace hoistd::sim

#endif  // HOIST_TESTS_SIM_SYSTEM_SIM_LIFE_H_
