#ifndef HOIST_TESTS_SUPPORT_UNTIL_H_
#define HOIST_TESTS_SUPPORT_UNTIL_H_

#include <functional>
#include <thread>

#include "daemon/base/clock.h"

namespace hoistd::testing {

// Asks over and over, for a minute at most: what a loaded machine takes is not
// a number of questions. False: it did not come to hold.
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
