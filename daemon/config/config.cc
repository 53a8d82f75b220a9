#include "daemon/config/config.h"

#include <fcntl.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <set>
#include <sstream>
#include <utility>
#include <vector>

#include "absl/strings/ascii.h"
#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "absl/strings/strip.h"
#include "daemon/base/status.h"
#include "daemon/config/config_keys.h"
#include "daemon/types/user.h"
#include "hoist/shared/socket_path.h"
#include "hoist/shared/unique_fd.h"

namespace hoistd {
namespace {

constexpr size_t kMaxConfigBytes = 1 << 20;

// "/etc/hoist/hoistd.toml:12".
std::string Where(const std::string& file, const toml::source_region& at) {
  return absl::StrCat(file, ":", at.begin.line);
}

// Entries in the order of the file; toml++ sorts them by name.
std::vector<std::pair<std::string, const toml::node*>> InOrder(
    const toml::table& table) {
  std::vector<std::pair<std::string, const toml::node*>> entries;
  for (const auto& [key, value] : table) {
    entries.emplace_back(key.str(), &value);
  }
  std::ranges::stable_sort(entries, {}, [](const auto& entry) {
    return entry.second->source().begin.line;
  });
  return entries;
}

// `value` as the file spells it, for messages.
std::string Shown(const toml::node& value) {
  std::ostringstream out;
  value.visit([&out](const auto& node) { out << node; });
  std::string text = out.str();
  constexpr size_t kLongest = 80;
  if (text.size() > kLongest) text = text.substr(0, kLongest) + "...";
  return text;
}

std::string Unknown(const std::string& name) {
  const std::string nearest = NearestConfigKey(name);
  return absl::StrCat(name, ": no such key",
                      nearest.empty()
                          ? "; deploy/hoistd.toml lists them all"
                          : absl::StrCat("; did you mean ", nearest, "?"));
}

bool IsTable(const std::string& name) {
  for (const ConfigKey& key : AllConfigKeys()) {
    if (absl::string_view(key.name).substr(0, name.size() + 1) == name + ".") {
      return true;
    }
  }
  return false;
}

const ConfigKey* FindKey(const std::string& name) {
  for (const ConfigKey& key : AllConfigKeys()) {
    if (key.name == name) return &key;
  }
  return nullptr;
}

// A configuration under construction, and all errors found so far.
struct Draft {
  Config config;
  ConfigPlaces places;
  // [[tenant]] tables, applied last: each starts from all other settings.
  const toml::array* tenants = nullptr;
  std::vector<std::string> wrong;

  void Refuse(const std::string& where, const std::string& why) {
    wrong.push_back(absl::StrCat(where, ": ", why));
  }
};

void SetKey(const std::string& where, const std::string& name,
            const toml::node& value, Draft& draft) {
  const ConfigKey* known = FindKey(name);
  if (known == nullptr && IsTable(name)) {
    return draft.Refuse(
        where, absl::StrCat(name, ": is a table; write [", name,
                            "] on a line of its own and its keys below"));
  }
  if (known == nullptr) return draft.Refuse(where, Unknown(name));
  draft.places[name] = where;
  if (!known->apply(value, draft.config)) {
    draft.Refuse(where, absl::StrCat(name, ": ", Shown(value),
                                     " is not allowed; use ", known->allowed));
  }
}

void ApplyTable(const std::string& file, const std::string& prefix,
                const toml::table& table, Draft& draft) {
  for (const auto& [key, node] : InOrder(table)) {
    const toml::node& value = *node;
    const std::string name = absl::StrCat(prefix, key);
    if (name == "tenant" && value.is_array_of_tables()) {
      draft.tenants = value.as_array();
    } else if (name == "tenant") {
      draft.Refuse(Where(file, value.source()),
                   "tenant: write [[tenant]] on a line of its own, once for "
                   "each, and its keys below");
    } else if (value.is_table() && IsTable(name)) {
      ApplyTable(file, absl::StrCat(name, "."), *value.as_table(), draft);
    } else {
      SetKey(Where(file, value.source()), name, value, draft);
    }
  }
}

// A [[tenant]]'s name for the key `name`; "": it has no such key.
absl::string_view TenantKey(absl::string_view name) {
  if (absl::StartsWith(name, "quota.")) return name;
  if (!absl::ConsumePrefix(&name, "server.")) return "";
  for (const absl::string_view own :
       {"socket", "grpc_socket", "socket_mode", "group"}) {
    if (name == own) return own;
  }
  return "";
}

// Keys of a [[tenant]] mean the same as in [server] and [quota].
void SetTenantKey(const std::string& where, const std::string& key,
                  const toml::node& value, Config& config, Draft& draft) {
  const ConfigKey* known = nullptr;
  for (const ConfigKey& one : AllConfigKeys()) {
    if (TenantKey(one.name) == key) known = &one;
  }
  if (known == nullptr) {
    draft.Refuse(where, absl::StrCat("tenant.", key,
                                     ": no such key; a tenant has name, "
                                     "socket, grpc_socket, socket_mode, group, "
                                     "and quota.KEY as in [quota]"));
  } else if (!known->apply(value, config)) {
    draft.Refuse(where, absl::StrCat("tenant.", key, ": ", Shown(value),
                                     " is not allowed; use ", known->allowed));
  }
}

// `config`: all other settings.
TenantConfig MakeTenant(const std::string& file, const toml::table& table,
                        Config config, Draft& draft) {
  config.server.socket.clear();
  config.server.grpc_socket.clear();
  TenantConfig tenant;
  const size_t wrong = draft.wrong.size();
  for (const auto& [key, node] : InOrder(table)) {
    const toml::node& value = *node;
    const std::string where = Where(file, value.source());
    if (key == "name") {
      tenant.name = value.value_or(std::string());
    } else if (key == "quota" && value.is_table()) {
      for (const auto& [quota, amount] : InOrder(*value.as_table())) {
        SetTenantKey(Where(file, amount->source()),
                     absl::StrCat("quota.", quota), *amount, config, draft);
      }
    } else {
      SetTenantKey(where, key, value, config, draft);
    }
  }
  const std::string where = Where(file, table.source());
  if (!User::Tenant(tenant.name).has_value()) {
    draft.Refuse(where,
                 "tenant.name: use 1 to 31 of a-z, 0-9, '-', '_' and '.', the "
                 "first a letter");
  }
  if (config.server.socket.empty() && draft.wrong.size() == wrong) {
    draft.Refuse(where,
                 "tenant.socket: is missing; use an absolute path of its own");
  }
  tenant.socket = config.server.socket;
  tenant.grpc_socket = config.server.grpc_socket;
  tenant.socket_mode = config.server.socket_mode;
  tenant.group = config.server.group;
  tenant.quota = config.quota;
  return tenant;
}

void MakeTenants(const std::string& file, Draft& draft) {
  if (draft.tenants == nullptr) return;
  std::set<std::string> names;
  std::set<std::string> sockets = {draft.config.server.socket,
                                   draft.config.server.grpc_socket,
                                   draft.config.metrics.socket};
  const Config all = draft.config;
  for (const toml::node& node : *draft.tenants) {
    const std::string where = Where(file, node.source());
    if (draft.config.tenants.size() == kMostTenants) {
      return draft.Refuse(where, absl::StrCat("tenant: more than ",
                                              kMostTenants, "; use fewer"));
    }
    TenantConfig tenant = MakeTenant(file, *node.as_table(), all, draft);
    if (!tenant.name.empty() && !names.insert(tenant.name).second) {
      draft.Refuse(where, absl::StrCat("tenant.name: there are two tenants ",
                                       tenant.name, "; use another name"));
    }
    for (const std::string& socket : {tenant.socket, tenant.grpc_socket}) {
      if (!socket.empty() && !sockets.insert(socket).second) {
        draft.Refuse(where, absl::StrCat("tenant.socket: ", socket,
                                         " is taken; each socket needs its own "
                                         "path"));
      }
    }
    draft.places[absl::StrCat("tenant.", tenant.name)] = where;
    draft.config.tenants.push_back(std::move(tenant));
  }
}

void ApplySetting(const std::string& setting, Draft& draft) {
  const size_t equals = setting.find('=');
  if (equals == std::string::npos || equals == 0) {
    return draft.Refuse("--set", absl::StrCat(setting,
                                              ": is not KEY=VALUE, such as "
                                              "device.pool=64MiB"));
  }
  const std::string name(
      absl::StripAsciiWhitespace(absl::string_view(setting).substr(0, equals)));
  const std::string text = setting.substr(equals + 1);
  toml::parse_result parsed = toml::parse("v = " + text);
  // One value, even if the text contains line breaks.
  if (parsed && parsed.table().size() == 1) {
    return SetKey("--set", name, *parsed.table().get("v"), draft);
  }
  SetKey("--set", name, toml::value<std::string>(text), draft);
}

// "/run/hoist/hoistd.metrics.sock" of "/run/hoist/hoistd.sock".
std::string MetricsSocketBeside(absl::string_view session_socket) {
  absl::ConsumeSuffix(&session_socket, ".sock");
  return absl::StrCat(session_socket, ".metrics.sock");
}

// Checks between keys. `file`: the place to report for keys that are not set.
void CheckTogether(const std::string& file, Draft& draft) {
  const Config& config = draft.config;
  const auto refuse = [&](const std::string& key, const std::string& why) {
    const auto place = draft.places.find(key);
    draft.Refuse(place == draft.places.end() ? file : place->second,
                 absl::StrCat(key, ": ", why));
  };
  if (config.server.socket == config.server.grpc_socket) {
    refuse("server.grpc_socket",
           absl::StrCat("is the same as server.socket (", config.server.socket,
                        "); give each its own path"));
  }
  if (config.metrics.socket == config.server.socket ||
      config.metrics.socket == config.server.grpc_socket) {
    refuse("metrics.socket",
           absl::StrCat(config.metrics.socket,
                        " is another socket's; give each its own path"));
  }
  if (config.disk.spill_dir.empty() &&
      config.disk.spill_capacity_bytes.has_value()) {
    refuse("disk.spill_capacity",
           "is set, but disk.spill_dir is not; set both, or neither for no "
           "spilling");
  }
  if (config.device.pool_bytes.has_value() &&
      *config.device.pool_bytes < config.device.slab_bytes) {
    refuse(
        "device.pool",
        absl::StrCat("is ", *config.device.pool_bytes,
                     " bytes, less than one slab; use at least "
                     "device.slab, ",
                     config.device.slab_bytes, " bytes, or make that smaller"));
  }
}

absl::StatusOr<std::string> ReadFile(const std::string& path) {
  const std::string what = absl::StrCat("read ", path);
  hoist::UniqueFd fd(open(path.c_str(), O_RDONLY | O_CLOEXEC | O_NOCTTY));
  if (!fd.valid()) return ErrnoToStatus(errno, what);
  std::string text;
  char buffer[4096];
  while (true) {
    const ssize_t n = read(fd.get(), buffer, sizeof(buffer));
    if (n < 0 && errno == EINTR) continue;
    if (n < 0) return ErrnoToStatus(errno, what);
    if (n == 0) return text;
    text.append(buffer, static_cast<size_t>(n));
    if (text.size() > kMaxConfigBytes) {
      return absl::InvalidArgumentError(
          absl::StrCat(path, " is larger than 1 MiB; that is no hoistd.toml"));
    }
  }
}

}  // namespace

absl::StatusOr<Config> ParseConfig(absl::string_view text,
                                   const std::string& name,
                                   const ConfigBase& base,
                                   ConfigPlaces* places) {
  toml::parse_result parsed =
      toml::parse(std::string_view(text.data(), text.size()), name);
  if (!parsed) {
    const toml::parse_error& error = parsed.error();
    const std::string_view why = error.description();
    return absl::InvalidArgumentError(absl::StrCat(
        Where(name, error.source()),
        ": not TOML: ", absl::string_view(why.data(), why.size())));
  }
  Draft draft;
  draft.config = base.defaults;
  ApplyTable(name, "", parsed.table(), draft);
  for (const std::string& setting : base.settings) {
    ApplySetting(setting, draft);
  }
  if (draft.places.contains("server.socket") &&
      !draft.places.contains("server.grpc_socket")) {
    draft.config.server.grpc_socket =
        hoist::GrpcSocketBeside(draft.config.server.socket);
  }
  if (draft.places.contains("server.socket") &&
      !draft.places.contains("metrics.socket")) {
    draft.config.metrics.socket =
        MetricsSocketBeside(draft.config.server.socket);
  }
  CheckTogether(name, draft);
  MakeTenants(name, draft);
  if (!draft.wrong.empty()) {
    return absl::InvalidArgumentError(absl::StrJoin(draft.wrong, "\n"));
  }
  if (places != nullptr) *places = std::move(draft.places);
  return draft.config;
}

absl::StatusOr<Config> LoadConfig(const std::string& path,
                                  const ConfigBase& base,
                                  ConfigPlaces* places) {
  HOIST_ASSIGN_OR_RETURN(const std::string text, ReadFile(path));
  return ParseConfig(text, path, base, places);
}

Config UserDefaults(const std::string& folder) {
  Config config;
  config.server.socket = folder + "/hoistd.sock";
  config.server.grpc_socket = hoist::GrpcSocketBeside(config.server.socket);
  config.metrics.socket = MetricsSocketBeside(config.server.socket);
  config.server.socket_mode = 0600;
  config.server.group = "";
  config.server.admin_group = "";
  // hoistd has this user's rights, and serves this user alone.
  config.models.roots = {"/"};
  config.log.sink = LogConfig::Sink::kStderr;
  return config;
}

std::vector<std::string> ConfigKeys() {
  std::vector<std::string> names;
  for (const ConfigKey& key : AllConfigKeys()) names.emplace_back(key.name);
  return names;
}

std::vector<ConfigValue> ConfigValues(const Config& config) {
  std::vector<ConfigValue> values;
  for (const ConfigKey& key : AllConfigKeys()) {
    values.push_back({std::string(key.name), key.show(config)});
  }
  for (const TenantConfig& tenant : config.tenants) {
    Config as_one;
    as_one.server.socket = tenant.socket;
    as_one.server.grpc_socket = tenant.grpc_socket;
    as_one.server.socket_mode = tenant.socket_mode;
    as_one.server.group = tenant.group;
    as_one.quota = tenant.quota;
    for (const ConfigKey& key : AllConfigKeys()) {
      const absl::string_view own = TenantKey(key.name);
      if (own.empty()) continue;
      values.push_back(
          {absl::StrCat("tenant.", tenant.name, ".", own), key.show(as_one)});
    }
  }
  return values;
}

}  // namespace hoistd
