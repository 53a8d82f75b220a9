#include "daemon/base/timed_cond_var.h"

#include <linux/filter.h>
#include <linux/futex.h>
#include <linux/seccomp.h>
#include <sys/prctl.h>
#include <sys/syscall.h>
#include <sys/wait.h>
#include <unistd.h>

#include <cstddef>
#include <cstdint>
#include <iterator>
#include <thread>

#include "gtest/gtest.h"

namespace hoistd::timed_cond_var_test {

// From now on a wait by CLOCK_REALTIME ends this process.
bool DenyRealtimeWaits() {
  constexpr uint32_t kOperation = offsetof(seccomp_data, args[1]);
  sock_filter filter[] = {
      BPF_STMT(BPF_LD | BPF_W | BPF_ABS, offsetof(seccomp_data, nr)),
      BPF_JUMP(BPF_JMP | BPF_JEQ | BPF_K, SYS_futex, 0, 3),
      BPF_STMT(BPF_LD | BPF_W | BPF_ABS, kOperation),
      BPF_JUMP(BPF_JMP | BPF_JSET | BPF_K, FUTEX_CLOCK_REALTIME, 0, 1),
      BPF_STMT(BPF_RET | BPF_K, SECCOMP_RET_KILL_PROCESS),
      BPF_STMT(BPF_RET | BPF_K, SECCOMP_RET_ALLOW)};
  sock_fprog program = {.len = std::size(filter), .filter = filter};
  return prctl(PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0) == 0 &&
         prctl(PR_SET_SECCOMP, SECCOMP_MODE_FILTER, &program) == 0;
}

TEST(TimedCondVar, ATimeoutIsByTheClockThatNobodySets) {
  const pid_t child = fork();
  if (child == 0) {
    if (!DenyRealtimeWaits()) _exit(2);
    absl::Mutex mu;
    TimedCondVar changed;
    mu.Lock();
    changed.WaitWithTimeout(&mu, absl::Milliseconds(10));
    mu.Unlock();
    _exit(0);
  }
  int status = 0;
  ASSERT_EQ(waitpid(child, &status, 0), child);
  EXPECT_EQ(status, 0);
}

TEST(TimedCondVar, ASignalEndsAWaitOfAnyLength) {
  absl::Mutex mu;
  TimedCondVar changed;
  bool ready = false;
  std::thread other([&] {
    const absl::MutexLock lock(&mu);
    ready = true;
    changed.SignalAll();
  });
  {
    const absl::MutexLock lock(&mu);
    while (!ready) changed.Wait(&mu);
  }
  other.join();
}

// Neither misses what the other has changed.
TEST(TimedCondVar, TwoThreadsTakeTurns) {
  absl::Mutex mu;
  TimedCondVar changed;
  int turn = 0;
  constexpr int kTurns = 20'000;
  const auto take = [&](int mine) {
    for (int i = mine; i < kTurns; i += 2) {
      const absl::MutexLock lock(&mu);
      while (turn != i) changed.WaitWithTimeout(&mu, absl::Hours(1));
      ++turn;
      changed.SignalAll();
    }
  };
  std::thread other([&] { take(1); });
  take(0);
  other.join();
  EXPECT_EQ(turn, kTurns);
}

}  // namespace hoistd::timed_cond_var_test
