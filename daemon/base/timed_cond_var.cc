#include "daemon/base/timed_cond_var.h"

#include <linux/futex.h>
#include <sys/syscall.h>
#include <unistd.h>

#include <algorithm>
#include <climits>
#include <ctime>

namespace hoistd {
namespace {

// Fits every time_t.
constexpr absl::Duration kLongest = absl::Hours(24);

}  // namespace

void TimedCondVar::SignalAll() {
  ++signals_;
  if (waiters_ == 0) return;  // Later waiters see the change.
  syscall(SYS_futex, &signals_, FUTEX_WAKE_PRIVATE, INT_MAX, nullptr, nullptr,
          0);
}

void TimedCondVar::WaitWithTimeout(absl::Mutex* mu, absl::Duration limit) {
  ++waiters_;
  const uint32_t seen = signals_;
  mu->Unlock();
  const timespec most =
      absl::ToTimespec(std::clamp(limit, absl::ZeroDuration(), kLongest));
  // FUTEX_WAIT's timeout is relative, by CLOCK_MONOTONIC.
  syscall(SYS_futex, &signals_, FUTEX_WAIT_PRIVATE, seen, &most, nullptr, 0);
  --waiters_;
  mu->Lock();
}

}  // namespace hoistd
