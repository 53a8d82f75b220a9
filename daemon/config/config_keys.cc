#include "daemon/config/config_keys.h"

#include <algorithm>
#include <string_view>

#include "daemon/config/config_kinds.h"
#include "hoist/shared/nearest.h"

namespace hoistd {
namespace {

constexpr absl::string_view kSocketAllowed =
    "an absolute path of at most 107 bytes";
constexpr absl::string_view kSizeOrAutoAllowed =
    "\"auto\", a size such as \"64GiB\" or \"512MiB\", or a number of bytes";

constexpr absl::string_view kQuotaAllowed =
    "\"auto\", a share such as \"50%\", a size such as \"64GiB\", or a number "
    "of bytes";
constexpr absl::string_view kRateAllowed =
    "a rate such as \"55GB/s\" or \"12GiB/s\"; \"0\" is unlimited";
constexpr absl::string_view kCountAllowed = "a whole number, 1 to 1000000";

// A value's place: the path of members to it.
template <auto... kPath>
auto& At(auto& config) {
  return (config.*....*kPath);
}

template <typename Kind, auto... kPath>
constexpr ConfigKey Key(absl::string_view name, absl::string_view allowed) {
  return {
      name, allowed,
      [](const toml::node& value, Config& config) {
        return Kind::Set(value, &At<kPath...>(config));
      },
      [](const Config& config) { return Kind::Show(At<kPath...>(config)); }};
}

const ConfigKey kKeys[] = {
    Key<SocketPath, &Config::server, &ServerConfig::socket>("server.socket",
                                                            kSocketAllowed),
    Key<SocketPath, &Config::server, &ServerConfig::grpc_socket>(
        "server.grpc_socket", kSocketAllowed),
    Key<Mode, &Config::server, &ServerConfig::socket_mode>(
        "server.socket_mode", "octal digits as a string, \"0600\" to \"0777\""),
    Key<Text, &Config::server, &ServerConfig::group>(
        "server.group", "the name of a group, or \"\""),
    Key<Text, &Config::server, &ServerConfig::admin_group>(
        "server.admin_group", "the name of a group, or \"\""),
    Key<Count<1, 65536>, &Config::server, &ServerConfig::max_sessions>(
        "server.max_sessions", "1 to 65536"),
    Key<Choice<DeviceConfig::Backend>, &Config::device, &DeviceConfig::backend>(
        "device.backend", "\"auto\", \"cuda\" or \"emulated\""),
    Key<Choice<DeviceConfig::Share>, &Config::device, &DeviceConfig::share>(
        "device.share", "\"vmm\" or \"ipc\""),
    Key<Choice<DeviceConfig::Trust>, &Config::device, &DeviceConfig::trust>(
        "device.trust", "\"user\" or \"everyone\""),
    Key<SizeOrAuto<1>, &Config::device, &DeviceConfig::pool_bytes>(
        "device.pool", kSizeOrAutoAllowed),
    Key<SizeOrAuto<0>, &Config::device, &DeviceConfig::headroom_bytes>(
        "device.headroom", "a size such as \"1GiB\", 0, or \"auto\""),
    Key<Slab, &Config::device, &DeviceConfig::slab_bytes>(
        "device.slab", "a multiple of 2MiB, such as \"256MiB\""),
    Key<Rate, &Config::device, &DeviceConfig::load_bytes_per_s>(
        "device.load_rate", kRateAllowed),
    Key<Count<1, 64>, &Config::device, &DeviceConfig::emulated,
        &EmulatedConfig::count>("device.emulated.count",
                                "a whole number, 1 to 64"),
    Key<Rate, &Config::device, &DeviceConfig::emulated,
        &EmulatedConfig::link_bytes_per_s>("device.emulated.link",
                                           kRateAllowed),
    Key<Latency, &Config::device, &DeviceConfig::emulated,
        &EmulatedConfig::latency>(
        "device.emulated.latency",
        "a time such as \"10us\" or \"1ms\", to \"1m\""),
    Key<Size, &Config::device, &DeviceConfig::emulated,
        &EmulatedConfig::others_bytes>("device.emulated.others",
                                       "a size such as \"1GiB\", or 0"),
    Key<SizeOrAuto<1>, &Config::host, &HostConfig::pool_bytes>(
        "host.pool", kSizeOrAutoAllowed),
    Key<Size, &Config::host, &HostConfig::pageable_bytes>(
        "host.pageable", "a size such as \"16GiB\", or 0"),
    Key<SizeOrAuto<0>, &Config::host, &HostConfig::in_place_bytes>(
        "host.in_place", "a size such as \"8GiB\", 0, or \"auto\""),
    Key<Choice<HostConfig::Arenas>, &Config::host, &HostConfig::arenas>(
        "host.arenas", "\"below\" or \"above\""),
    Key<Choice<PageKind>, &Config::host, &HostConfig::huge_pages>(
        "host.huge_pages", "\"auto\", \"transparent\" or \"never\""),
    Key<Count<0, 256>, &Config::host, &HostConfig::touch_threads>(
        "host.touch_threads", "a whole number, 0 (as the machine) to 256"),
    Key<Choice<DiskConfig::Io>, &Config::disk, &DiskConfig::io>(
        "disk.io", "\"auto\", \"io_uring\" or \"threads\""),
    Key<Choice<DiskConfig::Direct>, &Config::disk, &DiskConfig::direct>(
        "disk.direct", "\"auto\" or \"never\""),
    Key<Folder, &Config::disk, &DiskConfig::spill_dir>(
        "disk.spill_dir", "an absolute path, or \"\" for no spilling"),
    Key<Choice<DiskConfig::Save>, &Config::disk, &DiskConfig::save>(
        "disk.save", "\"at_once\" or \"under_pressure\""),
    Key<SizeOrAuto<1>, &Config::disk, &DiskConfig::spill_capacity_bytes>(
        "disk.spill_capacity", kSizeOrAutoAllowed),
    Key<Deadline, &Config::disk, &DiskConfig::read_deadline>(
        "disk.read_deadline", "a time such as \"30s\", \"1s\" to \"1h\""),
    Key<Folders, &Config::models, &ModelsConfig::roots>(
        "models.roots", "a list of absolute paths, such as [\"/srv/models\"]"),
    Key<Preloads, &Config::models, &ModelsConfig::preload>(
        "models.preload",
        "[[models.preload]] on a line of its own, once for each, and below it "
        "path (absolute), and perhaps name, tier (\"host\" or \"device\"), "
        "device (its number) and pin (true)"),
    Key<Choice<Readers>, &Config::models, &ModelsConfig::readers>(
        "models.readers", "\"owner\" or \"everyone\""),
    Key<Count<1, 1'000'000>, &Config::quota, &QuotaConfig::sessions>(
        "quota.sessions", kCountAllowed),
    Key<Count<1, 1'000'000>, &Config::quota, &QuotaConfig::plans>(
        "quota.plans", kCountAllowed),
    Key<Count<1, 1'000'000>, &Config::quota, &QuotaConfig::models>(
        "quota.models", kCountAllowed),
    Key<CountOrAuto, &Config::quota, &QuotaConfig::descriptors>(
        "quota.descriptors", "\"auto\", or a whole number, 1 to 1000000"),
    Key<SizeOrAuto<1>, &Config::quota, &QuotaConfig::header_bytes>(
        "quota.header_bytes", kSizeOrAutoAllowed),
    Key<Amount, &Config::quota, &QuotaConfig::held_bytes>("quota.held_bytes",
                                                          kQuotaAllowed),
    Key<Amount, &Config::quota, &QuotaConfig::published_bytes>(
        "quota.published_bytes", kQuotaAllowed),
    Key<Amount, &Config::quota, &QuotaConfig::host_bytes>("quota.host_bytes",
                                                          kQuotaAllowed),
    Key<Amount, &Config::quota, &QuotaConfig::device_bytes>(
        "quota.device_bytes", kQuotaAllowed),
    Key<DeadlineOrNever, &Config::idle, &IdleConfig::after>(
        "idle.after", "\"never\", or a time such as \"60s\", \"1s\" to \"1h\""),
    Key<SocketPathOrNone, &Config::metrics, &MetricsConfig::socket>(
        "metrics.socket",
        "an absolute path of at most 107 bytes, or \"\" for none"),
    Key<Loopback, &Config::metrics, &MetricsConfig::listen>(
        "metrics.listen",
        "a loopback address and a port, such as \"127.0.0.1:9464\" or "
        "\"[::1]:9464\", or \"\" for none; for other machines put a proxy that "
        "asks who they are, or a node agent, before it"),
    Key<Count<0, 1000>, &Config::metrics, &MetricsConfig::models>(
        "metrics.models", "a whole number, 0 (none is named) to 1000"),
    Key<Choice<LogConfig::Level>, &Config::log, &LogConfig::level>(
        "log.level", "\"debug\", \"info\", \"warning\" or \"error\""),
    Key<Choice<LogConfig::Sink>, &Config::log, &LogConfig::sink>(
        "log.sink", "\"auto\", \"journal\" or \"stderr\""),
};

}  // namespace

std::span<const ConfigKey> AllConfigKeys() { return kKeys; }

std::string NearestConfigKey(absl::string_view name) {
  if (name.size() > hoist::kLongestSlip) return "";
  const std::string_view given(name.data(), name.size());
  const absl::string_view leaf = name.substr(name.rfind('.') + 1);
  std::string nearest;
  size_t least = hoist::MostEdits(given) + 1;
  for (const ConfigKey& key : kKeys) {
    size_t distance = hoist::EditDistance(
        given, std::string_view(key.name.data(), key.name.size()));
    // The right key in the wrong table is the nearest.
    if (leaf == key.name.substr(key.name.rfind('.') + 1)) {
      distance = std::min<size_t>(distance, 1);
    }
    if (distance >= least) continue;
    least = distance;
    nearest = std::string(key.name);
  }
  return nearest;
}

}  // namespace hoistd
