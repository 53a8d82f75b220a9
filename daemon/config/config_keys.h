// The keys of hoistd.toml: allowed values, and their place in Config.
#ifndef HOIST_DAEMON_CONFIG_CONFIG_KEYS_H_
#define HOIST_DAEMON_CONFIG_CONFIG_KEYS_H_

#include <span>
#include <string>

#include "absl/strings/string_view.h"
#include "daemon/config/config.h"
#include "daemon/config/toml.h"

namespace hoistd {

struct ConfigKey {
  absl::string_view name;     // Dotted.
  absl::string_view allowed;  // For messages.
  // False: `value` is not allowed, and `config` is unchanged.
  bool (*apply)(const toml::node& value, Config& config);
  // The value in TOML.
  std::string (*show)(const Config& config);
};

std::span<const ConfigKey> AllConfigKeys();

// The key nearest to `name`; "": none is near enough.
std::string NearestConfigKey(absl::string_view name);

}  // namespace hoistd

#endif  // HOIST_DAEMON_CONFIG_CONFIG_KEYS_H_
