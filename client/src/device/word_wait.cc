#include "client/src/device/word_wait.h"

#include <linux/futex.h>
#include <sys/syscall.h>
#include <time.h>
#include <unistd.h>

#include <algorithm>
#include <climits>

namespace hoist {
namespace {

using std::chrono::nanoseconds;

// About the cost of a futex call: a word that arrives sooner needs none.
constexpr int kSpins = 400;
constexpr nanoseconds kFirstSlice{50'000};
constexpr nanoseconds kLastSlice{1'000'000};

// The word is shared between processes, so not FUTEX_PRIVATE.
void FutexWait(lane::Word& word, uint32_t seen, nanoseconds at_most) {
  const timespec timeout = {static_cast<time_t>(at_most.count() / 1000000000),
                            static_cast<long>(at_most.count() % 1000000000)};
  syscall(SYS_futex, &word, FUTEX_WAIT, seen, &timeout, nullptr, 0);
}

}  // namespace

bool WaitWord(lane::Word& word, uint32_t target,
              std::chrono::steady_clock::time_point deadline) {
  for (int i = 0; i < kSpins; ++i) {
    if (lane::Reached(word.load(), target)) {
      return true;
    }
#if defined(__x86_64__)
    __builtin_ia32_pause();
#endif
  }
  nanoseconds slice = kFirstSlice;
  while (true) {
    const uint32_t seen = word.load();
    if (lane::Reached(seen, target)) return true;
    const nanoseconds left = deadline - std::chrono::steady_clock::now();
    if (left.count() <= 0) return false;
    FutexWait(word, seen, std::min(slice, left));
    slice = std::min(slice * 2, kLastSlice);
  }
}

void WakeWord(lane::Word& word) {
  syscall(SYS_futex, &word, FUTEX_WAKE, INT_MAX, nullptr, nullptr, 0);
}

}  // namespace hoist
