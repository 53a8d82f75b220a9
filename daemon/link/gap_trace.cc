#include "daemon/link/gap_trace.h"

#include <algorithm>

namespace hoistd {

void GapTrace::Woke() {
  if (!Traces(recorder_)) return;
  const absl::Time now = recorder_->Now();
  if (!on()) {
    recording_ = recorder_->number();
    state_ = {};
    state_.at = now;
  }
  state_.woke = now;
  if (!state_.idle) return;
  const absl::Time meant = state_.at + state_.rest;
  if (now - meant > kLate) {
    Spend(state_.why, meant);
    state_.late = now - meant;
    state_.at = now;
  }
  Spend(state_.why, now);
}

absl::Time GapTrace::Did(TraceWhy what, bool busy, absl::Time now) {
  if (!on()) return now;
  if (busy) {
    state_.at = now;
    return now;
  }
  absl::Time ended = now;
  if (!state_.idle) {
    ended = std::max(state_.at, std::min(state_.due, now));
    state_.idle = true;
    state_.begin = state_.at = ended;
    state_.spent = {};
    state_.told = std::nullopt;
    state_.late = std::max(state_.woke - ended, absl::ZeroDuration());
    state_.at = std::max(ended, state_.woke);
  }
  Spend(what, now);
  return ended;
}

std::optional<GapTrace::Gap> GapTrace::Began(uint64_t bytes,
                                             double bytes_per_second) {
  if (!on()) return std::nullopt;
  const absl::Time now = recorder_->Now();
  state_.due = std::max(state_.due, now) +
               absl::Seconds(double(bytes) / bytes_per_second);
  if (!state_.idle) return std::nullopt;
  state_.spent[static_cast<size_t>(TraceWhy::kThread)] += state_.late;
  state_.idle = false;
  state_.at = now;
  if (now - state_.begin >= kLeast) Tell(now, /*open=*/false);
  return Gap{state_.begin, now};
}

void GapTrace::Rests(TraceWhy why, absl::Duration rest) {
  const absl::Time now = recorder_->Now();
  Spend(TraceWhy::kDriver, now);
  // No copy was due: the thread was late for nothing.
  state_.spent[static_cast<size_t>(why)] += state_.late;
  state_.late = absl::ZeroDuration();
  state_.why = why;
  state_.rest = rest;
  if (now + rest - state_.begin < kLeast) return;
  if (state_.told == Cause()) return;
  state_.told = Cause();
  Tell(now, /*open=*/true);
}

void GapTrace::Spend(TraceWhy why, absl::Time until) {
  state_.spent[static_cast<size_t>(why)] += until - state_.at;
  state_.at = until;
}

TraceWhy GapTrace::Cause() const {
  const auto most = std::ranges::max_element(state_.spent);
  return static_cast<TraceWhy>(most - state_.spent.begin());
}

void GapTrace::Tell(absl::Time end, bool open) const {
  TraceEvent event;
  event.kind = TraceKind::kLinkGap;
  event.why = Cause();
  event.device = device_;
  event.begin = state_.begin;
  event.end = end;
  event.open = open;
  recorder_->Add(event);
}

}  // namespace hoistd
