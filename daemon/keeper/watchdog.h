// Detects that a program has given no sign of life for too long.
//
// The equivalent of systemd's WatchdogSec, by the same protocol
// (sd_watchdog_enabled(3), sd_notify(3)).
#ifndef HOIST_DAEMON_KEEPER_WATCHDOG_H_
#define HOIST_DAEMON_KEEPER_WATCHDOG_H_

#include <sys/types.h>

#include <map>
#include <optional>
#include <string>
#include <string_view>

#include "absl/time/time.h"

namespace hoistd {

// Threads: one.
// Owns:    nothing; it is told the time, of a clock that never runs backwards.
// Bounds:  one program at a time.
class Watchdog {
 public:
  // The longest pause between two signs of life; zero: any.
  explicit Watchdog(absl::Duration interval) : configured_(interval) {}

  // A program was started, and told of the interval. Nothing counts before it
  // is ready, or has given a sign of life.
  void Begin();
  // A program that another keeper started, and told of this interval: it counts
  // from now on. nullopt: nobody knows whether it gives signs; so its first
  // one begins.
  void TakeOver(std::optional<absl::Duration> told, absl::Time now);
  // The program ends, is to end, or has ended: nothing counts any more.
  void Stop();

  // What the program says: READY=1, STOPPING=1, WATCHDOG=1 and =trigger,
  // WATCHDOG_USEC, EXTEND_TIMEOUT_USEC; the rest is not for us.
  void Hear(const std::map<std::string, std::string>& said, absl::Time now);
  // The keeper did not run for a while (a paused container), and the program
  // maybe did not either: restarts its interval.
  void Overslept(absl::Time now);

  // When the program is to be ended; InfiniteFuture: not yet.
  absl::Time due() const;
  absl::Duration interval() const { return interval_; }
  // It asked to be ended (WATCHDOG=trigger).
  bool triggered() const { return triggered_; }

 private:
  const absl::Duration configured_;
  absl::Duration interval_;
  absl::Time due_ = absl::InfiniteFuture();
  bool counts_ = false;
  bool stopped_ = true;
  bool triggered_ = false;
};

// EXTEND_TIMEOUT_USEC, WATCHDOG_USEC: microseconds. nullopt: it says none, or
// what is no number. Infinity as systemd has it: 2^64 - 1.
std::optional<absl::Duration> MicrosecondsOf(
    const std::map<std::string, std::string>& said, const std::string& key);

// What /proc/PID/environ of this process says of its watchdog; zero: nothing.
absl::Duration ToldInterval(std::string_view environment, pid_t pid);

}  // namespace hoistd

#endif  // HOIST_DAEMON_KEEPER_WATCHDOG_H_
