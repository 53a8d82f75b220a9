#ifndef HOIST_DAEMON_BASE_CLOCK_H_
#define HOIST_DAEMON_BASE_CLOCK_H_

#include "absl/time/time.h"

namespace hoistd {

// A source of time. Thread-safe.
class Clock {
 public:
  virtual ~Clock() = default;
  // Monotonic; its zero has no meaning.
  virtual absl::Time Now() const = 0;
};

// CLOCK_MONOTONIC.
class MonotonicClock final : public Clock {
 public:
  absl::Time Now() const override;
};

}  // namespace hoistd

#endif  // HOIST_DAEMON_BASE_CLOCK_H_
