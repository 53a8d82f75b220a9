// How long a call waits for hoistd.
#ifndef HOIST_CLIENT_SRC_SESSION_CALL_LIMITS_H_
#define HOIST_CLIENT_SRC_SESSION_CALL_LIMITS_H_

#include <algorithm>
#include <atomic>
#include <chrono>
#include <optional>

#include "client/src/base/patience.h"

namespace hoist {

// What a caller says.
struct CallTime {
  // Without a deadline of its own, the limit; else the time beyond it.
  std::chrono::milliseconds beyond;
  // The call's own deadline. From then on it ends once hoistd has been silent
  // for kGiveBackPatience: a living one has decided, and may be copying.
  std::optional<std::chrono::milliseconds> own = std::nullopt;
};

// The same from the call's begin on.
struct CallLimits {
  using Clock = std::chrono::steady_clock;

  Clock::time_point end;
  std::chrono::milliseconds patience{0};  // 0: until the end.
  const std::atomic<bool>* cancelled = nullptr;
  bool once = false;  // See Connection::CallOnce.
  Clock::time_point own_end = Clock::time_point::max();  // See CallTime::own.

  // Of a call that begins now, in this thread.
  static CallLimits Of(const CallTime& time, const std::atomic<bool>* cancelled,
                       bool once = false) {
    const Clock::time_point now = Clock::now();
    const auto own = time.own.value_or(std::chrono::milliseconds(0));
    return {now + own + time.beyond, Patience(), cancelled, once,
            time.own ? now + own : Clock::time_point::max()};
  }
  bool cancelled_now() const { return cancelled != nullptr && *cancelled; }
  // When a silence since then ends the call.
  Clock::time_point SilentUntil(Clock::time_point since) const {
    const auto by_own = own_end == Clock::time_point::max()
                            ? own_end
                            : std::max(own_end, since + kGiveBackPatience);
    return patience.count() == 0 ? by_own : std::min(by_own, since + patience);
  }
};

}  // namespace hoist

#endif  // HOIST_CLIENT_SRC_SESSION_CALL_LIMITS_H_
