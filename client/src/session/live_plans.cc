#include "client/src/session/live_plans.h"

#include <sys/eventfd.h>

#include <utility>

namespace hoist {

void LivePlans::Add(uint64_t id) {
  const MutexLock lock(mu_);
  live_.try_emplace(id);
}

void LivePlans::Forget(uint64_t id) {
  const MutexLock lock(mu_);
  live_.erase(id);
}

std::vector<uint64_t> LivePlans::Ids() const {
  const MutexLock lock(mu_);
  std::vector<uint64_t> ids;
  for (const auto& [id, live] : live_) ids.push_back(id);
  return ids;
}

void LivePlans::Asked(const DaemonAsk& ask) {
  const MutexLock lock(mu_);
  if (std::holds_alternative<Wake>(ask)) {
    for (const auto& [owner, told] : sleepers_) told();
    if (wake_.valid()) eventfd_write(wake_.get(), 1);
    return;
  }
  const auto* plan = std::get_if<GiveWay>(&ask);
  const auto live = plan == nullptr ? live_.end() : live_.find(plan->plan);
  if (live == live_.end()) return;
  live->second.idle = plan->idle;
  if (live->second.told) live->second.told();
}

void LivePlans::Watch(uint64_t id, std::function<void()> told) {
  const MutexLock lock(mu_);
  const auto live = live_.find(id);
  if (live == live_.end()) return;
  live->second.told = std::move(told);
  if (live->second.idle.has_value()) live->second.told();
}

void LivePlans::WatchWakes(const void* owner, std::function<void()> told) {
  const MutexLock lock(mu_);
  sleepers_[owner] = std::move(told);
}

void LivePlans::ForgetWakes(const void* owner) {
  const MutexLock lock(mu_);
  sleepers_.erase(owner);
}

int LivePlans::WakeFd() {
  const MutexLock lock(mu_);
  if (!wake_.valid()) wake_ = UniqueFd(eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK));
  return wake_.get();
}

void LivePlans::Describe(hoist_plan_info* info) const {
  const MutexLock lock(mu_);
  const auto live = live_.find(info->id);
  if (live == live_.end() || !live->second.idle.has_value()) return;
  info->asked_to_give_way = 1;
  info->idle_ms = static_cast<uint64_t>(live->second.idle->count());
}

}  // namespace hoist
