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
#include "daemon/types/huge_pages.h"

namespace hoistd {

struct ServerConfig {
  std::string socket = "/run/hoist/hoistd.sock";
  // If only `socket` is set: beside it (hoist::GrpcSocketBeside).
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
  uint64_t others_bytes = 0;  // That other programs would take.

  bool operator==(const EmulatedConfig&) const = default;
};

struct DeviceConfig {
  enum class Backend { kAuto, kCuda, kEmulated };
  enum class Share { kVmm, kIpc };
  enum class Trust { kUser, kEveryone };

  Backend backend = Backend::kAuto;
  Share share = Share::kVmm;
  Trust trust = Trust::kUser;  // The scope of shared CUDA memory.
  // nullopt, "auto": 80 % of free memory on CUDA, 1 GiB on emulated devices.
  std::optional<uint64_t> pool_bytes;
  // Left free for other programs; 0: the pool keeps its size. nullopt, "auto":
  // 1 GiB of a GPU whose pool is "auto", else 0.
  std::optional<uint64_t> headroom_bytes;
  uint64_t slab_bytes = uint64_t{256} << 20;
  // Rate limit of background loads to each device; 0: none.
  uint64_t load_bytes_per_s = 0;
  EmulatedConfig emulated;

  bool operator==(const DeviceConfig&) const = default;
};

struct HostConfig {
  // kAbove: arenas may evict unreferenced in-place memory.
  enum class Arenas { kBelow, kAbove };

  // nullopt, "auto": from the cgroup's limit (daemon/host/host_limits.h).
  std::optional<uint64_t> pool_bytes;
  uint64_t pageable_bytes = 0;  // Beside the pool, not pinned; 0: none.
  // In-place memory, beside the pool; 0: none. nullopt, "auto": as in
  // host_limits.h.
  std::optional<uint64_t> in_place_bytes;
  Arenas arenas = Arenas::kBelow;
  PageKind huge_pages = PageKind::kHugetlb;  // The best that the pool may have.
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
  // nullopt, "auto": 90 % of the free space there.
  std::optional<uint64_t> spill_capacity_bytes;
  // Limit of a call to a file system that may hang.
  absl::Duration read_deadline = absl::Seconds(30);

  bool operator==(const DiskConfig&) const = default;
};

// A model loaded at start, as by `hoistctl load`.
struct PreloadConfig {
  std::string path;
  std::string name;  // "": the folder's or file's.
  enum class Tier { kHost, kDevice } tier = Tier::kHost;
  uint32_t device = 0;  // Of kDevice.
  bool pin = false;

  bool operator==(const PreloadConfig&) const = default;
};

struct ModelsConfig {
  // Folders from which gRPC callers may name paths.
  std::vector<std::string> roots;
  Readers readers = Readers::kOwner;  // Where the caller does not say.
  std::vector<PreloadConfig> preload;

  bool operator==(const ModelsConfig&) const = default;
};

// Limits of one user (uid). nullopt, "auto": no limit for root and hoistd's own
// user; every other user leaves an eighth to the rest.
struct QuotaConfig {
  uint32_t sessions = 256;
  uint32_t plans = 256;  // Those that wait for their ring included.
  uint32_t models = 4096;
  // nullopt, "auto": a quarter of hoistd's descriptor limit.
  std::optional<uint32_t> descriptors;
  std::optional<uint64_t> header_bytes;          // "auto": 1 GiB.
  std::optional<SizeOrPercent> held_bytes;       // Of the host pool.
  std::optional<SizeOrPercent> published_bytes;  // Of the host pool.
  std::optional<SizeOrPercent> host_bytes;       // Both, of the host pool.
  std::optional<SizeOrPercent> device_bytes;     // Of each device's pool.

  bool operator==(const QuotaConfig&) const = default;
};

struct IdleConfig {
  // Infinite, "never": idle plans give way when others need their memory.
  absl::Duration after = absl::InfiniteDuration();

  bool operator==(const IdleConfig&) const = default;
};

// A user identified by its socket, whatever uids connect there: for containers,
// whose workers all have uid 0. Never an admin.
struct TenantConfig {
  std::string name;  // As User::Tenant has it.
  std::string socket;
  std::string grpc_socket;      // "": none.
  uint32_t socket_mode = 0660;  // As in [server], like `group`.
  std::string group;
  QuotaConfig quota;  // Defaults to [quota].

  bool operator==(const TenantConfig&) const = default;
};

// The scrape endpoints; anyone who can connect can read.
struct MetricsConfig {
  // "": none. If only server.socket is set: beside it, like grpc_socket.
  std::string socket = "/run/hoist/hoistd.metrics.sock";
  std::string listen;     // For ParseLoopback; "": none.
  uint32_t models = 100;  // Largest by name; the rest is summed.

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
  IdleConfig idle;
  MetricsConfig metrics;
  LogConfig log;
  std::vector<TenantConfig> tenants;  // [[tenant]]; at most kMostTenants.

  bool operator==(const Config&) const = default;
};

// "debug", "info", "warning" or "error"; nullopt: anything else.
std::optional<LogConfig::Level> LogLevelByName(absl::string_view name);

// The inputs besides the file. If two set a key, the later one wins:
// `defaults`, the file, `settings`.
struct ConfigBase {
  Config defaults;
  // "KEY=VALUE", as for --set: "device.pool=64MiB". VALUE is TOML, else a
  // string without its quotes.
  std::vector<std::string> settings;
};

// Defaults of `hoistd --user`: for this user alone, on sockets in `folder`,
// with every path that the user can read.
Config UserDefaults(const std::string& folder);

// Where each key was last set: "/etc/hoist/hoistd.toml:12" or "--set". Keys
// that were not set are absent. "tenant.NAME": where that tenant is.
using ConfigPlaces = std::map<std::string, std::string>;

// InvalidArgument: one line per error, "FILE:LINE: KEY: error; allowed values",
// or "--set: KEY: ...". NotFound, PermissionDenied: the file cannot be read.
// `places` may be nullptr.
absl::StatusOr<Config> LoadConfig(const std::string& path,
                                  const ConfigBase& base = {},
                                  ConfigPlaces* places = nullptr);
// `name`: the file's name in messages.
absl::StatusOr<Config> ParseConfig(absl::string_view text,
                                   const std::string& name,
                                   const ConfigBase& base = {},
                                   ConfigPlaces* places = nullptr);
// All keys: "server.socket" and so on.
std::vector<std::string> ConfigKeys();

// A key and its value in TOML, such as "\"64GiB\"".
struct ConfigValue {
  std::string key;
  std::string value;
};
// All keys; those of tenants as "tenant.NAME.KEY".
std::vector<ConfigValue> ConfigValues(const Config& config);

}  // namespace hoistd

#endif  // HOIST_DAEMON_CONFIG_CONFIG_H_
