// Kills hoistd in the middle of its work.
#ifndef HOIST_TESTS_SIM_SYSTEM_REAPER_H_
#define HOIST_TESTS_SIM_SYSTEM_REAPER_H_

#include <csetjmp>
#include <cstdint>

#include "absl/functional/function_ref.h"

namespace hoistd::sim {

// Points are where others can see hoistd's progress: before and after a write
// to its book, a descriptor handed to the keeper, a store to a lane, a slab
// made or destroyed, a copy or a read queued. One more is before an answer.
//
// Threads:  one.
class Reaper {
 public:
  // hoistd dies after `points` more points; 0: at the next one.
  void Arm(uint32_t points) {
    armed_ = true;
    left_ = points;
  }
  void Disarm() { armed_ = false; }

  // Runs work of hoistd. False: it was killed meanwhile. As with SIGKILL,
  // nothing of it is destroyed; the caller leaves it as it is.
  bool Run(absl::FunctionRef<void()> run);
  void Point();

 private:
  bool armed_ = false;
  bool running_ = false;
  uint32_t left_ = 0;
  std::jmp_buf out_ = {};
};

// The reaper of this process, which runs one case. Global, since wrapped
// functions of the daemon have no other access to it.
Reaper& TheReaper();

}  // namespace hoistd::sim

#endif  // HOIST_TESTS_SIM_SYSTEM_REAPER_H_
