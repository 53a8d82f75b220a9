#include "daemon/base/clock.h"

#include <ctime>

namespace hoistd {

absl::Time MonotonicClock::Now() const {
  timespec now;
  clock_gettime(CLOCK_MONOTONIC, &now);
  return absl::TimeFromTimespec(now);
}

}  // namespace hoistd
