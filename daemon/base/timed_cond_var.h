#ifndef HOIST_DAEMON_BASE_TIMED_COND_VAR_H_
#define HOIST_DAEMON_BASE_TIMED_COND_VAR_H_

#include <atomic>
#include <cstdint>

#include "absl/base/thread_annotations.h"
#include "absl/synchronization/mutex.h"
#include "absl/time/time.h"

namespace hoistd {

// absl::CondVar with timeouts by CLOCK_MONOTONIC. Abseil 20220623 waits by
// CLOCK_REALTIME, also in Mutex::AwaitWithTimeout: setting the clock back
// prolongs such a wait by as much.
//
// Wake-ups may be spurious: wait in a loop that checks the condition.
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
