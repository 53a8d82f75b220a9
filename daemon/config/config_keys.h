// The keys of hoistd.toml: what each accepts, and where it goes.
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
  // False: `value` is not allowed here, and `config` is unchanged.
  bool (*apply)(const toml::node& value, Config& config);
  // As TOML has it.
  std::string (*show)(const Config& config);
};

std::span<const ConfigKey> AllConfigKeys();

// The key nearest to `name`; "" where none is near enough to be meant.
std::string NearestConfigKey(absl::string_view name);

}  // namespace hoistd

#endif  // HOIST_DAEMON_CONFIG_CONFIG_KEYS_H_
