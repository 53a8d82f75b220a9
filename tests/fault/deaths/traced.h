// A process that is stopped at each of its system calls, and killed at one.
#ifndef HOIST_TESTS_FAULT_DEATHS_TRACED_H_
#define HOIST_TESTS_FAULT_DEATHS_TRACED_H_

#include <cstdint>
#include <string>
#include <vector>

namespace hoistd::testing {

// Where the process dies. Entries and returns of system calls count one each,
// over all threads, from its first connect() on.
struct DeathPlace {
  uint64_t stop = 0;          // 0: nowhere.
  uint64_t instructions = 0;  // Beyond that, of the thread that made the call.
};

struct Death {
  uint64_t stops = 0;  // That it came to.
  bool killed = false;
  int code = -1;  // Its exit's, if it ended by itself.
};

// Runs a program to its end. The program must ask to be traced, and stop
// itself.
Death RunTraced(const std::vector<std::string>& command, DeathPlace place);

}  // namespace hoistd::testing

#endif  // HOIST_TESTS_FAULT_DEATHS_TRACED_H_
