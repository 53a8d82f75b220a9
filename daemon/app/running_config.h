// The configuration that hoistd runs with.
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

// Where a configuration comes from: the command line.
struct ConfigSource {
  std::string path;  // "": no file.
  bool user = false;
  std::vector<std::string> settings;

  // In messages.
  std::string file() const { return path.empty() ? "(defaults)" : path; }
};

// Reads it once at the start, and again when somebody asks. What can change
// while hoistd runs is changed then: quotas, device.load_rate, models.roots,
// models.preload and log.level.
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

  // Who takes changes over, called with all of the configuration; and what keys
  // have come to. nullptr: nobody does any more, and none is at it.
  void Connect(std::function<void(const Config&)> apply,
               std::map<std::string, std::string> comes_to);

  // NodeControl. Both changes are told in the log.
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
  Config read_ ABSL_GUARDED_BY(mu_);  // Last.
  ConfigPlaces places_ ABSL_GUARDED_BY(mu_);
  std::function<void(const Config&)> apply_ ABSL_GUARDED_BY(mu_);
  std::map<std::string, std::string> comes_to_ ABSL_GUARDED_BY(mu_);
};

}  // namespace hoistd

#endif  // HOIST_DAEMON_APP_RUNNING_CONFIG_H_
