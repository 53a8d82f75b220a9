// The value of a kept copy: seconds saved per second until its next use.
//
// With an order hint the next use is known. Without one it is estimated as the
// time since the last use (Lindy's estimate); plain recency is then the special
// case of equal restore costs. On a cyclic order the farthest next use is
// evicted first, as in Belady's optimum; LRU would evict exactly the next one.
#ifndef HOIST_DAEMON_CORE_KEEP_VALUE_H_
#define HOIST_DAEMON_CORE_KEEP_VALUE_H_

#include <cstdint>
#include <optional>

#include "absl/time/time.h"

namespace hoistd {

struct KeepFacts {
  uint64_t bytes = 0;
  absl::Duration since_use;
  std::optional<absl::Duration> until_use;  // From an order hint.
  // Of the tier that would restore the copy.
  double restore_bytes_per_second = 1;
  // Of the spill before eviction; 0: the copy is clean.
  double spill_bytes_per_second = 0;
};

// Seconds saved per second until the next use; larger is worth more.
double KeepValue(const KeepFacts& facts);

}  // namespace hoistd

#endif  // HOIST_DAEMON_CORE_KEEP_VALUE_H_
