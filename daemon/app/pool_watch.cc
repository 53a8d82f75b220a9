#include "daemon/app/pool_watch.h"

#include <algorithm>
#include <utility>

#include "absl/strings/str_cat.h"
#include "daemon/base/start_thread.h"
#include "daemon/base/status.h"
#include "daemon/types/tier.h"

namespace hoistd {

PoolWatch::PoolWatch(const std::vector<std::unique_ptr<Device>>& devices,
                     const std::vector<uint64_t>& pools, Engine& engine,
                     const Clock& clock)
    : engine_(engine), clock_(clock) {
  for (size_t i = 0; i < devices.size(); ++i) {
    // Memory in place is the host's.
    if (devices[i]->info().kind == DeviceKind::kInPlace) continue;
    watched_.push_back({devices[i].get(), PoolPolicy(pools[i])});
  }
}

PoolWatch::Settings PoolWatch::SettingsOf(const DeviceConfig& config,
                                          DeviceKind kind) {
  const bool of_gpu = kind == DeviceKind::kCuda;
  const uint64_t automatic =
      of_gpu && !config.pool_bytes.has_value() ? uint64_t{1} << 30 : 0;
  return {config.headroom_bytes.value_or(automatic),
          config.emulated.others_bytes};
}

PoolWatch::~PoolWatch() {
  {
    const absl::MutexLock lock(&mu_);
    ends_ = true;
    changed_.SignalAll();
  }
  if (thread_.joinable()) thread_.join();
}

absl::Status PoolWatch::Start() {
  HOIST_ASSIGN_OR_RETURN(thread_, StartThread([this] { Run(); }));
  return absl::OkStatus();
}

void PoolWatch::Set(Settings settings) {
  const absl::MutexLock lock(&mu_);
  settings_ = settings;
  changed_.SignalAll();
}

void PoolWatch::Run() {
  Settings seen;
  while (true) {
    {
      const absl::MutexLock lock(&mu_);
      const bool looks = seen.headroom > 0 ||
                         std::ranges::any_of(watched_, [](const Watched& one) {
                           return !one.policy.is_whole();
                         });
      const absl::Time next =
          looks ? clock_.Now() + kInterval : absl::InfiniteFuture();
      while (!ends_ && settings_ == seen && clock_.Now() < next) {
        changed_.WaitWithTimeout(&mu_, next - clock_.Now());
      }
      if (ends_) return;
      seen = settings_;
    }
    for (Watched& one : watched_) Look(one, seen);
  }
}

void PoolWatch::Look(Watched& watched, const Settings& settings) {
  const DeviceInfo& info = watched.device->info();
  const absl::StatusOr<uint64_t> others = settings.headroom == 0 ? 0
                                          : info.kind == DeviceKind::kEmulated
                                              ? settings.emulated_others
                                              : watched.device->OthersBytes();
  if (!others.ok()) {
    if (!std::exchange(watched.told, true)) {
      engine_.AddNote(absl::StrCat("device.headroom: ", info.name,
                                   " does not say how much memory is "
                                   "free, and its pool keeps its size: ",
                                   others.status().message()));
    }
    return;
  }
  watched.told = false;
  const std::optional<uint64_t> capacity = watched.policy.Look(
      info.total_bytes, *others, settings.headroom, clock_.Now());
  const bool newly =
      std::exchange(watched.headroom, settings.headroom) != settings.headroom;
  if (!capacity.has_value() && !newly) return;
  engine_.Resize(OnDevice(info.index),
                 {watched.policy.capacity(), settings.headroom});
}

}  // namespace hoistd
