#include "daemon/stream/lane_board.h"

#include <utility>

namespace hoistd {
namespace {

constexpr absl::Duration kRateWindow = absl::Seconds(1);

}  // namespace

void LaneBoard::Publish(const LaneStats& stats, absl::Time now) {
  const absl::MutexLock lock(&mu_);
  const auto [it, is_new] = published_.try_emplace(stats.plan);
  Published& to = it->second;
  if (is_new) to.since = to.mark = now;
  if (stats.copied_bytes != to.stats.copied_bytes) to.last_copy = now;
  to.stats = stats;
  if (now - to.mark < kRateWindow) return;
  to.since = std::exchange(to.mark, now);
  to.bytes_at_since = std::exchange(to.bytes_at_mark, stats.copied_bytes);
}

void LaneBoard::Erase(PlanId plan) {
  const absl::MutexLock lock(&mu_);
  const auto found = published_.find(plan);
  if (found == published_.end()) return;
  erased_.Add(found->second.stats);
  published_.erase(found);
}

void LaneBoard::Totals::Add(const LaneStats& stats) {
  waited += stats.waited;
  waits += stats.waits;
  loads += stats.loads;
  wasted_loads += stats.wasted_loads;
  host_waits += stats.host_waits;
}

LaneBoard::Totals LaneBoard::AllTotals() const {
  const absl::MutexLock lock(&mu_);
  Totals totals = erased_;
  for (const auto& [plan, lane] : published_) totals.Add(lane.stats);
  return totals;
}

std::vector<LaneStats> LaneBoard::Stats(absl::Time now) const {
  const absl::MutexLock lock(&mu_);
  std::vector<LaneStats> all;
  for (const auto& [plan, lane] : published_) {
    all.push_back(lane.stats);
    const absl::Duration time = now - lane.since;
    if (time <= absl::ZeroDuration() || now - lane.last_copy > kRateWindow) {
      continue;
    }
    all.back().bytes_per_second = static_cast<uint64_t>(
        static_cast<double>(lane.stats.copied_bytes - lane.bytes_at_since) /
        absl::ToDoubleSeconds(time));
  }
  return all;
}

}  // namespace hoistd
