// How hoistd is killed in the midst of what it does.
#ifndef HOIST_TESTS_SIM_SYSTEM_REAPER_H_
#define HOIST_TESTS_SIM_SYSTEM_REAPER_H_

#include <csetjmp>
#include <cstdint>

#include "absl/functional/function_ref.h"

namespace hoistd::sim {

// Points are where others can see what hoistd has done so far: before and after
// it writes to its book, has a descriptor kept, stores a word of a lane, makes
// or destroys a slab, queues a copy or a read; and before it answers.
//
// Threads:  one.
class Reaper {
 public:
  // It dies at the so many-th point from now on, 0: at the next.
  void Arm(uint32_t points) {
    armed_ = true;
    left_ = points;
  }
  void Disarm() { armed_ = false; }

  // Runs something of hoistd's. False: it was killed in it. As with SIGKILL,
  // nothing that it had is destroyed; whoever runs it leaves it where it is.
  bool Run(absl::FunctionRef<void()> run);
  void Point();

 private:
  bool armed_ = false;
  bool running_ = false;
  uint32_t left_ = 0;
  std::jmp_buf out_ = {};
};

// Of this process, which runs one case: wrapped functions of the daemon have no
// other way to know it.
Reaper& TheReaper();

}  // namespace hoistd::sim

#endif  // HOIST_TESTS_SIM_SYSTEM_REAPER_H_
