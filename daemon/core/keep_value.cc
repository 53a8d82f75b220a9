#include "daemon/core/keep_value.h"

#include <algorithm>

namespace hoistd {

double KeepValue(const KeepFacts& facts) {
  double cost =
      static_cast<double>(facts.bytes) / facts.restore_bytes_per_second;
  if (facts.spill_bytes_per_second > 0) {
    cost += static_cast<double>(facts.bytes) / facts.spill_bytes_per_second;
  }
  const absl::Duration until = facts.until_use.value_or(facts.since_use);
  // Times below a millisecond are noise.
  return cost / std::max(absl::ToDoubleSeconds(until), 1e-3);
}

}  // namespace hoistd
