#include "daemon/keeper/watchdog.h"

#include <algorithm>
#include <cstdint>

#include "absl/strings/numbers.h"

namespace hoistd {
namespace {

bool Says(const std::map<std::string, std::string>& said,
          const std::string& key, std::string_view value) {
  const auto found = said.find(key);
  return found != said.end() && found->second == value;
}

std::optional<absl::Duration> ParseMicroseconds(const std::string& text) {
  uint64_t count = 0;
  if (!absl::SimpleAtoi(text, &count)) return std::nullopt;
  // USEC_INFINITY, or longer than absl::Duration holds.
  if (count > INT64_MAX) return absl::InfiniteDuration();
  return absl::Microseconds(static_cast<int64_t>(count));
}

bool Bounds(absl::Duration interval) {
  return interval > absl::ZeroDuration() && interval < absl::InfiniteDuration();
}

}  // namespace

void Watchdog::Begin() {
  interval_ = configured_;
  counts_ = stopped_ = triggered_ = false;
}

void Watchdog::TakeOver(std::optional<absl::Duration> told, absl::Time now) {
  Begin();
  if (!told.has_value()) return;
  // The program keeps the interval that it was told, whatever --watchdog says.
  interval_ = *told;
  counts_ = true;
  due_ = now + interval_;
}

void Watchdog::Stop() {
  stopped_ = true;
  counts_ = triggered_ = false;
}

void Watchdog::Hear(const std::map<std::string, std::string>& said,
                    absl::Time now) {
  if (stopped_) return;
  if (Says(said, "STOPPING", "1")) return Stop();
  if (Says(said, "WATCHDOG", "trigger")) triggered_ = true;
  const std::optional<absl::Duration> other =
      MicrosecondsOf(said, "WATCHDOG_USEC");
  if (other.has_value()) interval_ = *other;
  if (Says(said, "READY", "1") || Says(said, "WATCHDOG", "1")) {
    counts_ = true;
    due_ = now + interval_;
  } else if (other.has_value()) {
    due_ = now + interval_;
  }
  const std::optional<absl::Duration> more =
      MicrosecondsOf(said, "EXTEND_TIMEOUT_USEC");
  if (more.has_value() && Bounds(*more)) due_ = std::max(due_, now + *more);
}

void Watchdog::Overslept(absl::Time now) {
  due_ = std::max(due_, now + interval_);
}

absl::Time Watchdog::due() const {
  if (triggered_) return absl::InfinitePast();
  return counts_ && Bounds(interval_) ? due_ : absl::InfiniteFuture();
}

std::optional<absl::Duration> MicrosecondsOf(
    const std::map<std::string, std::string>& said, const std::string& key) {
  const auto found = said.find(key);
  if (found == said.end()) return std::nullopt;
  return ParseMicroseconds(found->second);
}

absl::Duration ToldInterval(std::string_view environment, pid_t pid) {
  std::map<std::string, std::string> told;
  while (!environment.empty()) {
    const std::string_view one = environment.substr(0, environment.find('\0'));
    environment.remove_prefix(std::min(environment.size(), one.size() + 1));
    const size_t equals = one.find('=');
    if (equals == std::string_view::npos) continue;
    told.emplace(one.substr(0, equals), one.substr(equals + 1));
  }
  // WATCHDOG_USEC of an ancestor is not this process's.
  int whose = 0;
  const auto named = told.find("WATCHDOG_PID");
  if (named != told.end() &&
      (!absl::SimpleAtoi(named->second, &whose) || whose != pid)) {
    return absl::ZeroDuration();
  }
  const absl::Duration interval =
      MicrosecondsOf(told, "WATCHDOG_USEC").value_or(absl::ZeroDuration());
  return Bounds(interval) ? interval : absl::ZeroDuration();
}

}  // namespace hoistd
