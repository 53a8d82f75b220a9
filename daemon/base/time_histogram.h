// A histogram of durations, with fixed bounds.
#ifndef HOIST_DAEMON_BASE_TIME_HISTOGRAM_H_
#define HOIST_DAEMON_BASE_TIME_HISTOGRAM_H_

#include <algorithm>
#include <array>
#include <cstddef>
#include <cstdint>

#include "absl/time/time.h"

namespace hoistd {

// The range is from a lease without a copy to a model read from a slow disk.
// The bounds are fixed, since records under other bounds could not be compared.
struct TimeHistogram {
  static constexpr std::array<double, 15> kBounds = {  // Seconds.
      0.0001, 0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1,
      0.25,   0.5,   1,      2.5,   5,    10,    30};

  // Counts up to each bound, above the previous one; the last: above all
  // bounds.
  std::array<uint64_t, kBounds.size() + 1> counts = {};
  uint64_t total = 0;
  double seconds = 0;  // Of all.

  void Add(absl::Duration took) {
    const double s = std::max(0.0, absl::ToDoubleSeconds(took));
    const auto bound = std::lower_bound(kBounds.begin(), kBounds.end(), s);
    ++counts[static_cast<size_t>(bound - kBounds.begin())];
    ++total;
    seconds += s;
  }
};

}  // namespace hoistd

#endif  // HOIST_DAEMON_BASE_TIME_HISTOGRAM_H_
