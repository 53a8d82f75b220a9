// The current configuration of a running hoistd.
#ifndef HOIST_DAEMON_APP_RUNNING_CONFIG_H_
#define HOIST_DAEMON_APP_RUNNING_CONFIG_H_

#include <functional>
#include <map>
#include <memory>
#include <string>
#include <vector>

#include "absl/base/thread_annotations.h"
#include "absl/status/statusor.h"
#include "absl/synchronization/mutex.h"
#include "daemon/config/config.h"
#include "daemon/rpc/node_control.h"

namespace hoistd {

// A configuration's sources, from the command line.
struct ConfigSource {
  std::string path;  // "": no file.
  bool user = false;
  std::vector<std::string> settings;

  // For messages.
  std::string file() const { return path.empty() ? "(defaults)" : path; }
};

// Reads the configuration at the start and at each reload. A reload applies
// quotas, device.load_rate, device.headroom, device.emulated.others,
// models.roots, models.preload and log.level.
//
// Threads:  thread-safe; one change at a time.
class RunningConfig final : public NodeControl {
 public:
  // LoadConfig's errors.
  static absl::StatusOr<std::unique_ptr<RunningConfig>> Read(
      ConfigSource source);

  const Config& at_start() const { return at_start_; }
  const ConfigPlaces& places_at_start() const { return places_at_start_; }
  const ConfigSource& source() const { return source_; }

  // `apply`: called with the whole configuration after a change. nullptr:
  // disconnects, and waits for a running call. `comes_to`: resolved values by
  // key.
  void Connect(std::function<void(const Config&)> apply,
               std::map<std::string, std::string> comes_to);

  // NodeControl. Both changes are logged.
  absl::StatusOr<Reloaded> Reload() override;
  std::vector<Setting> Settings() override;
  absl::Status SetLogLevel(absl::string_view level) override;

 private:
  RunningConfig(ConfigSource source, Config config, ConfigPlaces places);

  const ConfigSource source_;
  const Config at_start_;
  const ConfigPlaces places_at_start_;
  absl::Mutex mu_;
  Config running_ ABSL_GUARDED_BY(mu_);
  Config read_ ABSL_GUARDED_BY(mu_);  // By the last reload.
  ConfigPlaces places_ ABSL_GUARDED_BY(mu_);
  std::function<void(const Config&)> apply_ ABSL_GUARDED_BY(mu_);
  std::map<std::string, std::string> comes_to_ ABSL_GUARDED_BY(mu_);
};

}  // namespace hoistd

#endif  // HOIST_DAEMON_APP_RUNNING_CONFIG_H_
