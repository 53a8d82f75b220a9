// Runs cases, each in a process of its own, and shrinks failing ones.
#ifndef HOIST_TESTS_SIM_SYSTEM_RUNNER_H_
#define HOIST_TESTS_SIM_SYSTEM_RUNNER_H_

#include <cstdint>
#include <optional>
#include <string>

#include "tests/sim/system/mutant.h"
#include "tests/sim/system/script.h"
#include "tests/sim/system/sim_models.h"
#include "tests/sim/system/violation.h"

namespace hoistd::sim {

struct Outcome {
  bool failed = false;
  std::string check;  // Which reported: NameOf(Check), or "crash", "hang".
  std::string what;
  Script script;       // What was done, to the step that failed.
  uint32_t steps = 0;  // Of it.
  Sights sights = {};
  uint64_t trace = 0;  // Of what was answered when; the same if all was.
};

// Threads: one, and the process has no other.
class Runner {
 public:
  static constexpr uint32_t kMostSteps = 1 << 16;

  Runner();
  Runner(const Runner&) = delete;
  Runner& operator=(const Runner&) = delete;
  ~Runner();

  // Runs `steps` steps, chosen by the seed from the useful ones.
  Outcome Random(uint64_t seed, uint32_t steps, Mutation mutation = {});
  Outcome Replay(const Script& script, Mutation mutation = {});
  // Removes steps as long as the same check reports, in at most `most_runs`
  // runs.
  Script Shrink(Script script, const std::string& check, int most_runs,
                Mutation mutation = {});

 private:
  struct Shared;

  template <typename Case>
  Outcome InChild(Mutation mutation, Case&& run_case);

  const SimModels models_;
  Shared* const shared_;
};

// The text of a failure: the reason, then a script that reproduces it, for a
// test to replay.
std::string Report(const Outcome& outcome, uint64_t seed, const Script& shrunk);

}  // namespace hoistd::sim

#endif  // HOIST_TESTS_SIM_SYSTEM_RUNNER_H_
