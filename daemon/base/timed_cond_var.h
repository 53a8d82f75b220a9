#ifndef HOIST_DAEMON_BASE_TIMED_COND_VAR_H_
#define HOIST_DAEMON_BASE_TIMED_COND_VAR_H_

#include <atomic>
#include <cstdint>

#include "absl/base/thread_annotations.h"
#include "absl/synchronization/mutex.h"
#include "absl/time/time.h"

namespace hoistd {

// absl::CondVar, whose timeouts are CLOCK_MONOTONIC's. Abseil 20220623 waits by
// CLOCK_REALTIME, its Mutex::AwaitWithTimeout too: a clock that is set back
// meanwhile makes such a wait as much longer.
//
// Wakes may come for nothing: wait in a loop that looks at what is waited for.
//
// Threads:  thread-safe. A change is made under the mutex, and then signalled.
class TimedCondVar {
 public:
  TimedCondVar() = default;
  TimedCondVar(const TimedCondVar&) = delete;
  TimedCondVar& operator=(const TimedCondVar&) = delete;

  void SignalAll();
  void Wait(absl::Mutex* mu) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu) {
    WaitWithTimeout(mu, absl::InfiniteDuration());
  }
  void WaitWithTimeout(absl::Mutex* mu, absl::Duration limit)
      ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu);

 private:
  std::atomic<uint32_t> signals_ = 0;
  std::atomic<uint32_t> waiters_ = 0;
};

}  // namespace hoistd

#endif  // HOIST_DAEMON_BASE_TIMED_COND_VAR_H_
