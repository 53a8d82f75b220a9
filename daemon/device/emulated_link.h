// Computes the times of copies over a link of a given rate and latency.
#ifndef HOIST_DAEMON_DEVICE_EMULATED_LINK_H_
#define HOIST_DAEMON_DEVICE_EMULATED_LINK_H_

#include <cstdint>

#include "absl/base/thread_annotations.h"
#include "absl/synchronization/mutex.h"
#include "absl/time/time.h"

namespace hoistd {

// One direction of one link, which all streams share as they share a copy
// engine: whole copies, one after the other. Time is virtual, an argument and a
// result, so a waiter that wakes late costs no bandwidth.
//
// Threads:  thread-safe.
class EmulatedLink {
 public:
  // `bytes_per_second` 0: no limit. `latency` is added to each copy, and does
  // not keep the link busy.
  EmulatedLink(uint64_t bytes_per_second, absl::Duration latency)
      : bytes_per_second_(bytes_per_second), latency_(latency) {}

  // Books a copy that can start at `ready`; returns its end.
  absl::Time Book(uint64_t bytes, absl::Time ready) ABSL_LOCKS_EXCLUDED(mu_);

 private:
  const uint64_t bytes_per_second_;
  const absl::Duration latency_;
  absl::Mutex mu_;
  absl::Time free_at_ ABSL_GUARDED_BY(mu_) = absl::InfinitePast();
};

}  // namespace hoistd

#endif  // HOIST_DAEMON_DEVICE_EMULATED_LINK_H_
