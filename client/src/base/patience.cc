#include "client/src/base/patience.h"

#include <atomic>

namespace hoist {
namespace {

using std::chrono::milliseconds;
using std::chrono::steady_clock;

// A silence of one session shortens the others' waits for this long.
constexpr std::chrono::seconds kSilenceCounts{30};
constexpr milliseconds kAfterSilence{100};

// Time of this process's last silence since the clock's epoch; 0: none.
constinit std::atomic<steady_clock::rep> last_silence{0};
constinit thread_local milliseconds of_this_thread{0};

}  // namespace

milliseconds Patience() { return of_this_thread; }

milliseconds SetPatience(milliseconds patience) {
  const milliseconds before = of_this_thread;
  of_this_thread = patience;
  return before;
}

milliseconds GiveBackPatience() {
  const steady_clock::duration last(last_silence.load());
  const bool lately =
      last.count() != 0 &&
      steady_clock::now().time_since_epoch() - last < kSilenceCounts;
  return lately ? kAfterSilence : kGiveBackPatience;
}

void NoteSilence() {
  last_silence = steady_clock::now().time_since_epoch().count();
}

}  // namespace hoist
