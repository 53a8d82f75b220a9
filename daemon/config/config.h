// hoistd.toml, as a value. deploy/hoistd.toml documents every key.
#ifndef HOIST_DAEMON_CONFIG_CONFIG_H_
#define HOIST_DAEMON_CONFIG_CONFIG_H_

#include <cstdint>
#include <map>
#include <optional>
#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "absl/time/time.h"
#include "daemon/config/size.h"
#include "daemon/model/tensor.h"

namespace hoistd {

struct ServerConfig {
  std::string socket = "/run/hoist/hoistd.sock";
  // Where only `socket` is set: beside it (hoist::GrpcSocketBeside).
  std::string grpc_socket = "/run/hoist/hoistd.grpc.sock";
  uint32_t socket_mode = 0660;
  std::string group = "hoist";  // Of the sockets; "" leaves it alone.
  std::string admin_group = "hoist-admin";
  uint32_t max_sessions = 1024;

  bool operator==(const ServerConfig&) const = default;
};

struct EmulatedConfig {
  uint32_t count = 1;
  uint64_t link_bytes_per_s = 0;  // 0: as fast as memory is.
  absl::Duration latency = absl::ZeroDuration();

  bool operator==(const EmulatedConfig&) const = default;
};

struct DeviceConfig {
  enum class Backend { kAuto, kCuda, kEmulated };
  enum class Share { kVmm, kIpc };
  enum class Trust { kUser, kEveryone };

  Backend backend = Backend::kAuto;
  Share share = Share::kVmm;
  Trust trust = Trust::kUser;  // Who shares CUDA memory.
  // nullopt, "auto": on CUDA 80 % of what is free, emulated 1 GiB.
  std::optional<uint64_t> pool_bytes;
  uint64_t slab_bytes = uint64_t{256} << 20;
  // To each device, of what nobody waits for; 0: no cap.
  uint64_t load_bytes_per_s = 0;
  EmulatedConfig emulated;

  bool operator==(const DeviceConfig&) const = default;
};

struct HostConfig {
  // Beside what lies in place and nobody uses.
  enum class Arenas { kBelow, kAbove };

  // nullopt, "auto": from the cgroup's limit (daemon/host/host_limits.h).
  std::optional<uint64_t> pool_bytes;
  // Beside it, for what devices read in place; 0: none. nullopt, "auto": as
  // host_limits.h says.
  std::optional<uint64_t> in_place_bytes;
  Arenas arenas = Arenas::kBelow;
  uint32_t touch_threads = 0;  // 0: as many as the machine has cores, to 16.

  bool operator==(const HostConfig&) const = default;
};

struct DiskConfig {
  enum class Io { kAuto, kIoUring, kThreads };
  enum class Direct { kAuto, kNever };
  enum class Save { kAtOnce, kUnderPressure };

  Io io = Io::kAuto;
  Direct direct = Direct::kAuto;
  std::string spill_dir;      // "": nothing is spilled.
  Save save = Save::kAtOnce;  // When published images go there.
  // nullopt, "auto": 90 % of what is free there.
  std::optional<uint64_t> spill_capacity_bytes;
  // How long a file system that may hang may leave a call unanswered.
  absl::Duration read_deadline = absl::Seconds(30);

  bool operator==(const DiskConfig&) const = default;
};

// A model that is loaded as soon as hoistd serves, as `hoistctl load` would.
struct PreloadConfig {
  std::string path;
  std::string name;  // "": the folder's or file's.
  enum class Tier { kHost, kDevice } tier = Tier::kHost;
  uint32_t device = 0;  // Of kDevice.
  bool pin = false;

  bool operator==(const PreloadConfig&) const = default;
};

struct ModelsConfig {
  // Folders below which gRPC callers may name paths.
  std::vector<std::string> roots;
  Readers readers = Readers::kOwner;  // Where the caller does not say.
  std::vector<PreloadConfig> preload;

  bool operator==(const ModelsConfig&) const = default;
};

// What one user (uid) may hold. nullopt, "auto": root and hoistd's own user may
// have all there is, and every other leaves an eighth to the rest.
struct QuotaConfig {
  uint32_t sessions = 256;
  uint32_t plans = 256;  // Those that wait for their ring included.
  uint32_t models = 4096;
  // nullopt, "auto": a quarter of the descriptors that hoistd may have.
  std::optional<uint32_t> descriptors;
  std::optional<uint64_t> header_bytes;          // "auto": 1 GiB.
  std::optional<SizeOrPercent> held_bytes;       // Of the host pool.
  std::optional<SizeOrPercent> published_bytes;  // Of the host pool.
  std::optional<SizeOrPercent> host_bytes;       // Both, of the host pool.
  std::optional<SizeOrPercent> device_bytes;     // Of each device's pool.

  bool operator==(const QuotaConfig&) const = default;
};

// A user by its socket, whatever uids come through it: containers, whose
// workers all are uid 0. Never an admin.
struct TenantConfig {
  std::string name;  // As User::Tenant has it.
  std::string socket;
  std::string grpc_socket;      // "": none.
  uint32_t socket_mode = 0660;  // As [server] has it, like `group`.
  std::string group;
  QuotaConfig quota;  // As [quota] has it, where nothing else is said.

  bool operator==(const TenantConfig&) const = default;
};

// Where scrapers ask; whoever may connect may read.
struct MetricsConfig {
  // "": none. Where only server.socket is set: beside it, as grpc_socket is.
  std::string socket = "/run/hoist/hoistd.metrics.sock";
  std::string listen;     // As ParseLoopback has it; "": none.
  uint32_t models = 100;  // So many are named; the rest is summed.

  bool operator==(const MetricsConfig&) const = default;
};

struct LogConfig {
  enum class Level { kDebug, kInfo, kWarning, kError };
  enum class Sink { kAuto, kJournal, kStderr };

  Level level = Level::kInfo;
  Sink sink = Sink::kAuto;  // kAuto: the journal where systemd started us.

  bool operator==(const LogConfig&) const = default;
};

inline constexpr size_t kMostTenants = 64;

struct Config {
  ServerConfig server;
  DeviceConfig device;
  HostConfig host;
  DiskConfig disk;
  ModelsConfig models;
  QuotaConfig quota;
  MetricsConfig metrics;
  LogConfig log;
  std::vector<TenantConfig> tenants;  // [[tenant]]; at most kMostTenants.

  bool operator==(const Config&) const = default;
};

// "debug", "info", "warning" or "error"; nullopt: anything else.
std::optional<LogConfig::Level> LogLevelByName(absl::string_view name);

// What a configuration is made of, besides the file. The later of two that
// name a key wins: `defaults`, the file, `settings`.
struct ConfigBase {
  Config defaults;
  // "KEY=VALUE", as --set has them: "device.pool=64MiB". VALUE is TOML, or else
  // a string without its quotes.
  std::vector<std::string> settings;
};

// What `hoistd --user` serves where no file or --set says otherwise: this user
// alone, on sockets in `folder`, with every path that the user can read.
Config UserDefaults(const std::string& folder);

// Where each key was set last, "/etc/hoist/hoistd.toml:12" or "--set"; of those
// that were set. "tenant.NAME": where all of it is.
using ConfigPlaces = std::map<std::string, std::string>;

// InvalidArgument: "FILE:LINE: KEY: what is wrong; what is allowed", or
// "--set: KEY: ...", a line for each that is wrong. NotFound or
// PermissionDenied: the file cannot be read. `places` may be nullptr.
absl::StatusOr<Config> LoadConfig(const std::string& path,
                                  const ConfigBase& base = {},
                                  ConfigPlaces* places = nullptr);
// `name` stands for the file in messages.
absl::StatusOr<Config> ParseConfig(absl::string_view text,
                                   const std::string& name,
                                   const ConfigBase& base = {},
                                   ConfigPlaces* places = nullptr);
// Every key there is, "server.socket" and so on.
std::vector<std::string> ConfigKeys();

// A key and its value as TOML has it, "\"64GiB\"".
struct ConfigValue {
  std::string key;
  std::string value;
};
// Of every key; of tenants "tenant.NAME.KEY".
std::vector<ConfigValue> ConfigValues(const Config& config);

}  // namespace hoistd

#endif  // HOIST_DAEMON_CONFIG_CONFIG_H_
