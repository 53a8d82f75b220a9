// What it is worth to keep a copy: the seconds it saves, per second until it
// is needed.
//
// With an order hint the time until the next use is known. Without one it is
// taken to be the time since the last use: what was used t ago is expected
// again in about t (Lindy's estimate), which makes plain recency the special
// case where all copies cost the same to bring back. On a cyclic order the
// farthest next use goes first, as in Belady's optimum; LRU would evict exactly
// what is needed next.
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
  // From where the copy would come back.
  double restore_bytes_per_second = 1;
  // What must be written before it may go; 0: it is clean.
  double spill_bytes_per_second = 0;
};

// Seconds saved per second until the next use; larger is worth more.
double KeepValue(const KeepFacts& facts);

}  // namespace hoistd

#endif  // HOIST_DAEMON_CORE_KEEP_VALUE_H_
