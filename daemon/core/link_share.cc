#include "daemon/core/link_share.h"

#include <algorithm>
#include <tuple>
#include <utility>

#include "daemon/base/check.h"

namespace hoistd {
namespace {

// Virtual times grow by bytes; beyond 2^53 a double would lose them. A level
// starts anew from 0 long before.
constexpr double kRebaseAt = 1e12;

}  // namespace

absl::Time LinkShare::Entry::AllowedAt() const {
  const uint64_t rate = options.max_bytes_per_second;
  if (rate == 0 || owed <= double(kBurstBytes)) return absl::InfinitePast();
  return as_of + absl::Seconds((owed - double(kBurstBytes)) / double(rate));
}

LinkShare::Entry& LinkShare::Of(PlanId plan) {
  const auto it = plans_.find(plan);
  HOIST_CHECK(it != plans_.end());
  return it->second;
}

void LinkShare::Add(PlanId plan, const ShareOptions& options) {
  HOIST_CHECK(options.weight > 0);
  Entry entry;
  entry.options = options;
  entry.start = virtual_time_[options.priority];
  HOIST_CHECK(plans_.emplace(plan, entry).second);
}

void LinkShare::Remove(PlanId plan) { HOIST_CHECK(plans_.erase(plan) == 1); }

void LinkShare::Set(PlanId plan, const ShareOptions& options) {
  HOIST_CHECK(options.weight > 0);
  Entry& entry = Of(plan);
  // Levels have clocks of their own; the plan keeps what it is ahead of one.
  const double ahead = entry.start - virtual_time_[entry.options.priority];
  entry.start = virtual_time_[options.priority] + std::max(ahead, 0.0);
  entry.options = options;
}

// A plan that is always ready is never behind the clock: the clock is the least
// of those that are. One that was not ready joins at the clock.
double LinkShare::StartOfNext(const Entry& entry) const {
  return std::max(entry.finish(), virtual_time_.at(entry.options.priority));
}

std::optional<PlanId> LinkShare::Pick(const std::vector<PlanId>& ready,
                                      absl::Time now) {
  std::optional<PlanId> best;
  const Entry* best_entry = nullptr;
  for (const PlanId plan : ready) {
    const Entry& entry = Of(plan);
    if (entry.AllowedAt() > now) continue;
    const auto rank = [&](PlanId id, const Entry& e) {
      return std::tuple(-e.options.priority, StartOfNext(e), id);
    };
    if (best_entry == nullptr || rank(plan, entry) < rank(*best, *best_entry)) {
      best = plan;
      best_entry = &entry;
    }
  }
  return best;
}

void LinkShare::Charge(PlanId plan, uint64_t bytes, absl::Time now) {
  Entry& entry = Of(plan);
  const int32_t priority = entry.options.priority;
  entry.start = StartOfNext(entry);
  entry.bytes = bytes;
  virtual_time_[priority] = entry.start;
  if (entry.start > kRebaseAt) Rebase(priority);

  const uint64_t rate = entry.options.max_bytes_per_second;
  if (rate == 0) {
    entry.owed = 0;
  } else if (now > entry.as_of) {
    const double paid = absl::ToDoubleSeconds(now - entry.as_of) * double(rate);
    entry.owed = std::max(entry.owed - paid, 0.0);
  }
  if (rate != 0) entry.owed += double(bytes);
  entry.as_of = std::max(entry.as_of, now);
}

void LinkShare::Rebase(int32_t priority) {
  const double now = std::exchange(virtual_time_[priority], 0.0);
  for (auto& [id, entry] : plans_) {
    if (entry.options.priority == priority) entry.start -= now;
  }
}

absl::Time LinkShare::NextTurn(const std::vector<PlanId>& ready) const {
  absl::Time next = absl::InfiniteFuture();
  for (const PlanId plan : ready) {
    const Entry& entry = plans_.at(plan);
    if (entry.options.max_bytes_per_second == 0) continue;
    next = std::min(next, entry.AllowedAt());
  }
  return next;
}

}  // namespace hoistd
