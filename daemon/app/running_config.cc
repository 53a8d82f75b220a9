#include "daemon/app/running_config.h"

#include <spdlog/spdlog.h>

#include <optional>
#include <set>
#include <utility>

#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "absl/strings/str_split.h"
#include "absl/strings/string_view.h"
#include "daemon/base/status.h"
#include "hoist/shared/socket_path.h"

namespace hoistd {
namespace {

constexpr char kByHand[] = "hoistctl log-level";

absl::StatusOr<Config> ReadConfig(const ConfigSource& source,
                                  ConfigPlaces& places) {
  ConfigBase base;
  base.settings = source.settings;
  if (source.user) {
    hoist::Result<std::string> folder = hoist::MakeUserSocketFolder();
    if (!folder.ok()) return ToAbsl(folder.status());
    base.defaults = UserDefaults(*folder);
  }
  if (source.path.empty()) {
    return ParseConfig("", source.file(), base, &places);
  }
  return LoadConfig(source.path, base, &places);
}

// Copies the keys that can change while hoistd runs.
void TakeOver(const Config& from, Config& to) {
  to.device.load_bytes_per_s = from.device.load_bytes_per_s;
  to.device.headroom_bytes = from.device.headroom_bytes;
  to.device.emulated.others_bytes = from.device.emulated.others_bytes;
  to.models.roots = from.models.roots;
  to.models.preload = from.models.preload;
  to.quota = from.quota;
  to.log.level = from.log.level;
  for (TenantConfig& tenant : to.tenants) {
    for (const TenantConfig& other : from.tenants) {
      if (other.name == tenant.name) tenant.quota = other.quota;
    }
  }
}

std::map<std::string, std::string> ByKey(const Config& config) {
  std::map<std::string, std::string> values;
  for (ConfigValue& one : ConfigValues(config)) {
    values[std::move(one.key)] = std::move(one.value);
  }
  return values;
}

// A tenant's keys without a place have the tenant's.
std::string SourceOf(const std::string& key, const ConfigPlaces& places) {
  auto place = places.find(key);
  if (place == places.end() && absl::StartsWith(key, "tenant.")) {
    place = places.find(key.substr(0, key.find('.', sizeof("tenant."))));
  }
  return place == places.end() ? "default" : place->second;
}

// Keys whose values differ, or that only one of them has.
std::vector<std::string> Differing(const Config& a, const Config& b) {
  const std::map<std::string, std::string> ours = ByKey(a), theirs = ByKey(b);
  std::set<std::string> keys;
  for (const auto& [key, value] : ours) {
    const auto other = theirs.find(key);
    if (other == theirs.end() || other->second != value) keys.insert(key);
  }
  for (const auto& [key, value] : theirs) {
    if (!ours.contains(key)) keys.insert(key);
  }
  return {keys.begin(), keys.end()};
}

// Logs each key's value, its former value if it changed, and its place.
void LogKeys(const Config& before, const Config& after,
             const ConfigPlaces& places) {
  if (!spdlog::should_log(spdlog::level::debug)) return;
  const std::map<std::string, std::string> old = ByKey(before);
  for (const auto& [key, value] : ByKey(after)) {
    const auto was = old.find(key);
    const bool same = was != old.end() && was->second == value;
    SPDLOG_DEBUG("reload: {} = {} ({}{})", key, value, SourceOf(key, places),
                 same               ? ""
                 : was == old.end() ? ", new"
                                    : "; before " + was->second);
  }
}

}  // namespace

absl::StatusOr<std::unique_ptr<RunningConfig>> RunningConfig::Read(
    ConfigSource source) {
  ConfigPlaces places;
  HOIST_ASSIGN_OR_RETURN(Config config, ReadConfig(source, places));
  return std::unique_ptr<RunningConfig>(new RunningConfig(
      std::move(source), std::move(config), std::move(places)));
}

RunningConfig::RunningConfig(ConfigSource source, Config config,
                             ConfigPlaces places)
    : source_(std::move(source)),
      at_start_(config),
      places_at_start_(places),
      running_(config),
      read_(std::move(config)),
      places_(std::move(places)) {}

void RunningConfig::Connect(std::function<void(const Config&)> apply,
                            std::map<std::string, std::string> comes_to) {
  const absl::MutexLock lock(&mu_);
  apply_ = std::move(apply);
  comes_to_ = std::move(comes_to);
}

absl::StatusOr<Reloaded> RunningConfig::Reload() {
  const absl::MutexLock lock(&mu_);
  ConfigPlaces places;
  absl::StatusOr<Config> read = ReadConfig(source_, places);
  if (!read.ok()) {
    SPDLOG_ERROR("reload: all stays as it was");
    for (const absl::string_view fault :
         absl::StrSplit(read.status().message(), '\n')) {
      SPDLOG_ERROR("reload: {}", std::string(fault));
    }
    return read.status();
  }
  LogKeys(running_, *read, places);
  Config next = running_;
  TakeOver(*read, next);
  Reloaded reloaded;
  reloaded.changed = Differing(running_, next);
  reloaded.needs_restart = Differing(next, *read);
  running_ = std::move(next);
  read_ = *std::move(read);
  places_ = std::move(places);
  SPDLOG_INFO("reload: {} was read again; changed: {}", source_.file(),
              reloaded.changed.empty() ? "nothing"
                                       : absl::StrJoin(reloaded.changed, ", "));
  if (!reloaded.needs_restart.empty()) {
    SPDLOG_WARN("reload: what has changed of {} needs a restart",
                absl::StrJoin(reloaded.needs_restart, ", "));
  }
  // Last: it may raise the log level above these lines.
  if (apply_ != nullptr) apply_(running_);
  return reloaded;
}

std::vector<Setting> RunningConfig::Settings() {
  const absl::MutexLock lock(&mu_);
  const std::map<std::string, std::string> read = ByKey(read_);
  std::vector<Setting> settings;
  for (ConfigValue& one : ConfigValues(running_)) {
    Setting setting;
    setting.source = SourceOf(one.key, places_);
    const auto meant = comes_to_.find(one.key);
    if (meant != comes_to_.end() &&
        absl::StrCat("\"", meant->second, "\"") != one.value) {
      setting.comes_to = meant->second;
    }
    const auto next = read.find(one.key);
    if (next == read.end()) {
      setting.pending = "(gone)";
    } else if (next->second != one.value && setting.source != kByHand) {
      setting.pending = next->second;
    }
    setting.key = std::move(one.key);
    setting.value = std::move(one.value);
    settings.push_back(std::move(setting));
  }
  return settings;
}

absl::Status RunningConfig::SetLogLevel(absl::string_view level) {
  const std::optional<LogConfig::Level> wanted = LogLevelByName(level);
  if (!wanted.has_value()) {
    return absl::InvalidArgumentError(
        absl::StrCat("there is no log level \"", level,
                     "\"; use debug, info, warning or error"));
  }
  const absl::MutexLock lock(&mu_);
  running_.log.level = *wanted;
  places_["log.level"] = kByHand;
  if (apply_ != nullptr) apply_(running_);
  return absl::OkStatus();
}

}  // namespace hoistd
