// Keeps devices' pools beside other programs.
#ifndef HOIST_DAEMON_APP_POOL_WATCH_H_
#define HOIST_DAEMON_APP_POOL_WATCH_H_

#include <cstdint>
#include <memory>
#include <thread>
#include <vector>

#include "absl/base/thread_annotations.h"
#include "absl/status/status.h"
#include "absl/synchronization/mutex.h"
#include "absl/time/time.h"
#include "daemon/base/clock.h"
#include "daemon/base/timed_cond_var.h"
#include "daemon/config/config.h"
#include "daemon/core/pool_policy.h"
#include "daemon/engine/engine.h"
#include "daemon/types/device.h"

namespace hoistd {

// Looks at each device's memory at an interval, and tells the engine a new
// capacity of its pool, or a new headroom. A device that does not answer
// keeps its last one.
//
// Threads:  thread-safe; owns one.
// Owns:     its thread. Borrows devices, engine and clock, which must outlive
//           it.
class PoolWatch {
 public:
  static constexpr absl::Duration kInterval = absl::Milliseconds(250);

  struct Settings {
    uint64_t headroom = 0;         // 0: pools have their full size.
    uint64_t emulated_others = 0;  // On an emulated device.

    bool operator==(const Settings&) const = default;
  };
  static Settings SettingsOf(const DeviceConfig& config, DeviceKind kind);

  // `pools`: of each device, in bytes.
  PoolWatch(const std::vector<std::unique_ptr<Device>>& devices,
            const std::vector<uint64_t>& pools, Engine& engine,
            const Clock& clock);
  ~PoolWatch();

  // Call once. StartThread's errors.
  absl::Status Start();
  // Takes effect with the next look, which follows at once.
  void Set(Settings settings);

 private:
  struct Watched {
    Device* device;
    PoolPolicy policy;
    uint64_t headroom = 0;  // As the engine knows it.
    bool told = false;      // That it does not answer.
  };

  void Run();
  void Look(Watched& watched, const Settings& settings);

  Engine& engine_;
  const Clock& clock_;
  std::vector<Watched> watched_;  // The thread's.
  absl::Mutex mu_;
  TimedCondVar changed_;
  Settings settings_ ABSL_GUARDED_BY(mu_);
  bool ends_ ABSL_GUARDED_BY(mu_) = false;
  std::thread thread_;
};

}  // namespace hoistd

#endif  // HOIST_DAEMON_APP_POOL_WATCH_H_
