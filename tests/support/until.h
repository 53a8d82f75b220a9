#ifndef HOIST_TESTS_SUPPORT_UNTIL_H_
#define HOIST_TESTS_SUPPORT_UNTIL_H_

#include <functional>
#include <thread>

#include "daemon/base/clock.h"

namespace hoistd::testing {

// Polls for at most a minute: on a loaded machine, a number of polls is no
// limit. False: `holds` did not become true.
inline bool Until(const std::function<bool()>& holds) {
  const MonotonicClock clock;
  const absl::Time until = clock.Now() + absl::Minutes(1);
  while (!holds()) {
    if (clock.Now() > until) return false;
    std::this_thread::yield();
  }
  return true;
}

}  // namespace hoistd::testing

#endif  // HOIST_TESTS_SUPPORT_UNTIL_H_
