#include "daemon/config/config_keys.h"

#include <sys/un.h>

#include <algorithm>
#include <initializer_list>
#include <optional>
#include <string_view>
#include <utility>
#include <vector>

#include "daemon/base/loopback_address.h"
#include "daemon/config/size.h"
#include "hoist/shared/nearest.h"

namespace hoistd {
namespace {

std::optional<std::string> Text(const toml::node& value) {
  if (!value.is_string()) return std::nullopt;
  std::string text = value.as_string()->get();
  if (text.find('\0') != std::string::npos) return std::nullopt;
  return text;
}

bool SetText(const toml::node& value, std::string* to) {
  std::optional<std::string> text = Text(value);
  if (text.has_value()) *to = *std::move(text);
  return text.has_value();
}

bool SetSocketPath(const toml::node& value, std::string* to) {
  const std::optional<std::string> text = Text(value);
  if (!text.has_value() || text->empty() || text->front() != '/') return false;
  if (text->size() >= sizeof(sockaddr_un::sun_path)) return false;
  *to = *text;
  return true;
}

bool SetSocketPathOrNone(const toml::node& value, std::string* to) {
  if (Text(value) != "") return SetSocketPath(value, to);
  to->clear();
  return true;
}

bool SetLoopback(const toml::node& value, std::string* to) {
  const std::optional<std::string> text = Text(value);
  if (!text.has_value()) return false;
  if (!text->empty() && !ParseLoopback(*text).ok()) return false;
  *to = *text;
  return true;
}

bool SetMode(const toml::node& value, uint32_t* to) {
  const std::optional<std::string> text = Text(value);
  if (!text.has_value() || text->empty() || text->size() > 4) return false;
  uint32_t mode = 0;
  for (char digit : *text) {
    if (digit < '0' || digit > '7') return false;
    mode = mode * 8 + static_cast<uint32_t>(digit - '0');
  }
  if (mode > 0777) return false;
  *to = mode;
  return true;
}

std::optional<uint64_t> Size(const toml::node& value) {
  if (value.is_integer()) {
    const int64_t number = value.as_integer()->get();
    if (number < 0) return std::nullopt;
    return static_cast<uint64_t>(number);
  }
  const std::optional<std::string> text = Text(value);
  return text.has_value() ? ParseSize(*text) : std::nullopt;
}

bool SetSizeOrAuto(const toml::node& value, std::optional<uint64_t>* to,
                   bool zero = false) {
  if (Text(value) == "auto") {
    to->reset();
    return true;
  }
  const std::optional<uint64_t> size = Size(value);
  if (!size.has_value() || (*size == 0 && !zero)) return false;
  *to = size;
  return true;
}

bool SetQuota(const toml::node& value, std::optional<SizeOrPercent>* to) {
  if (Text(value) == "auto") {
    to->reset();
    return true;
  }
  std::optional<SizeOrPercent> amount;
  if (const auto text = Text(value)) {
    amount = ParseSizeOrPercent(*text);
  } else if (const auto bytes = Size(value)) {
    amount = SizeOrPercent{.bytes = *bytes};
  }
  if (!amount.has_value() || *amount == SizeOrPercent()) return false;
  *to = amount;
  return true;
}

bool SetSlab(const toml::node& value, uint64_t* to) {
  constexpr uint64_t kGranularity = uint64_t{2} << 20;
  const std::optional<uint64_t> size = Size(value);
  if (!size.has_value() || *size == 0 || *size % kGranularity != 0) {
    return false;
  }
  *to = *size;
  return true;
}

bool SetRate(const toml::node& value, uint64_t* to) {
  if (value.is_integer()) {
    const int64_t number = value.as_integer()->get();
    if (number < 0) return false;
    *to = static_cast<uint64_t>(number);
    return true;
  }
  const std::optional<std::string> text = Text(value);
  if (!text.has_value()) return false;
  const std::optional<uint64_t> rate = ParseRate(*text);
  if (!rate.has_value()) return false;
  *to = *rate;
  return true;
}

bool SetDuration(const toml::node& value, absl::Duration* to) {
  const std::optional<std::string> text = Text(value);
  absl::Duration duration;
  if (!text.has_value() || !absl::ParseDuration(*text, &duration)) return false;
  if (duration < absl::ZeroDuration() || duration > absl::Minutes(1)) {
    return false;
  }
  *to = duration;
  return true;
}

bool SetDeadline(const toml::node& value, absl::Duration* to) {
  const std::optional<std::string> text = Text(value);
  absl::Duration duration;
  if (!text.has_value() || !absl::ParseDuration(*text, &duration)) return false;
  if (duration < absl::Seconds(1) || duration > absl::Hours(1)) return false;
  *to = duration;
  return true;
}

template <uint32_t kLeast, uint32_t kMost>
bool SetCount(const toml::node& value, uint32_t* to) {
  if (!value.is_integer()) return false;
  const int64_t number = value.as_integer()->get();
  if (number < kLeast || number > kMost) return false;
  *to = static_cast<uint32_t>(number);
  return true;
}

bool SetCountOrAuto(const toml::node& value, std::optional<uint32_t>* to) {
  if (Text(value) == "auto") {
    to->reset();
    return true;
  }
  uint32_t count = 0;
  if (!SetCount<1, 1'000'000>(value, &count)) return false;
  *to = count;
  return true;
}

template <typename Enum>
bool SetEnum(const toml::node& value, Enum* to,
             std::initializer_list<std::pair<absl::string_view, Enum>> names) {
  const std::optional<std::string> text = Text(value);
  if (!text.has_value()) return false;
  for (const auto& [name, choice] : names) {
    if (*text != name) continue;
    *to = choice;
    return true;
  }
  return false;
}

bool SetFolder(const toml::node& value, std::string* to) {
  const std::optional<std::string> text = Text(value);
  if (!text.has_value() || (!text->empty() && text->front() != '/')) {
    return false;
  }
  *to = *text;
  return true;
}

bool SetFolders(const toml::node& value, std::vector<std::string>* to) {
  if (!value.is_array()) return false;
  std::vector<std::string> folders;
  for (const toml::node& element : *value.as_array()) {
    std::string folder;
    if (!SetFolder(element, &folder) || folder.empty()) return false;
    folders.push_back(std::move(folder));
  }
  *to = std::move(folders);
  return true;
}

using Node = const toml::node;

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

const ConfigKey kKeys[] = {
    {"server.socket", kSocketAllowed,
     [](Node& v, Config& c) { return SetSocketPath(v, &c.server.socket); }},
    {"server.grpc_socket", kSocketAllowed,
     [](Node& v, Config& c) {
       return SetSocketPath(v, &c.server.grpc_socket);
     }},
    {"server.socket_mode", "octal digits as a string, \"0600\" to \"0777\"",
     [](Node& v, Config& c) { return SetMode(v, &c.server.socket_mode); }},
    {"server.group", "the name of a group, or \"\"",
     [](Node& v, Config& c) { return SetText(v, &c.server.group); }},
    {"server.admin_group", "the name of a group, or \"\"",
     [](Node& v, Config& c) { return SetText(v, &c.server.admin_group); }},
    {"server.max_sessions", "1 to 65536",
     [](Node& v, Config& c) {
       return SetCount<1, 65536>(v, &c.server.max_sessions);
     }},
    {"device.backend", "\"auto\", \"cuda\" or \"emulated\"",
     [](Node& v, Config& c) {
       using B = DeviceConfig::Backend;
       return SetEnum<B>(v, &c.device.backend,
                         {{"auto", B::kAuto},
                          {"cuda", B::kCuda},
                          {"emulated", B::kEmulated}});
     }},
    {"device.share", "\"vmm\" or \"ipc\"",
     [](Node& v, Config& c) {
       using S = DeviceConfig::Share;
       return SetEnum<S>(v, &c.device.share,
                         {{"vmm", S::kVmm}, {"ipc", S::kIpc}});
     }},
    {"device.trust", "\"user\" or \"everyone\"",
     [](Node& v, Config& c) {
       using T = DeviceConfig::Trust;
       return SetEnum<T>(v, &c.device.trust,
                         {{"user", T::kUser}, {"everyone", T::kEveryone}});
     }},
    {"device.pool", kSizeOrAutoAllowed,
     [](Node& v, Config& c) { return SetSizeOrAuto(v, &c.device.pool_bytes); }},
    {"device.slab", "a multiple of 2MiB, such as \"256MiB\"",
     [](Node& v, Config& c) { return SetSlab(v, &c.device.slab_bytes); }},
    {"device.load_rate", kRateAllowed,
     [](Node& v, Config& c) { return SetRate(v, &c.device.load_bytes_per_s); }},
    {"device.emulated.count", "a whole number, 1 to 64",
     [](Node& v, Config& c) {
       return SetCount<1, 64>(v, &c.device.emulated.count);
     }},
    {"device.emulated.link", kRateAllowed,
     [](Node& v, Config& c) {
       return SetRate(v, &c.device.emulated.link_bytes_per_s);
     }},
    {"device.emulated.latency", "a time such as \"10us\" or \"1ms\", to \"1m\"",
     [](Node& v, Config& c) {
       return SetDuration(v, &c.device.emulated.latency);
     }},
    {"host.pool", kSizeOrAutoAllowed,
     [](Node& v, Config& c) { return SetSizeOrAuto(v, &c.host.pool_bytes); }},
    {"host.in_place", "a size such as \"8GiB\", 0, or \"auto\"",
     [](Node& v, Config& c) {
       return SetSizeOrAuto(v, &c.host.in_place_bytes, /*zero=*/true);
     }},
    {"host.touch_threads", "a whole number, 0 (as the machine) to 256",
     [](Node& v, Config& c) {
       return SetCount<0, 256>(v, &c.host.touch_threads);
     }},
    {"disk.io", "\"auto\", \"io_uring\" or \"threads\"",
     [](Node& v, Config& c) {
       using I = DiskConfig::Io;
       return SetEnum<I>(v, &c.disk.io,
                         {{"auto", I::kAuto},
                          {"io_uring", I::kIoUring},
                          {"threads", I::kThreads}});
     }},
    {"disk.direct", "\"auto\" or \"never\"",
     [](Node& v, Config& c) {
       using D = DiskConfig::Direct;
       return SetEnum<D>(v, &c.disk.direct,
                         {{"auto", D::kAuto}, {"never", D::kNever}});
     }},
    {"disk.spill_dir", "an absolute path, or \"\" for no spilling",
     [](Node& v, Config& c) { return SetFolder(v, &c.disk.spill_dir); }},
    {"disk.save", "\"at_once\" or \"under_pressure\"",
     [](Node& v, Config& c) {
       using S = DiskConfig::Save;
       return SetEnum<S>(
           v, &c.disk.save,
           {{"at_once", S::kAtOnce}, {"under_pressure", S::kUnderPressure}});
     }},
    {"disk.spill_capacity", kSizeOrAutoAllowed,
     [](Node& v, Config& c) {
       return SetSizeOrAuto(v, &c.disk.spill_capacity_bytes);
     }},
    {"disk.read_deadline", "a time such as \"30s\", \"1s\" to \"1h\"",
     [](Node& v, Config& c) { return SetDeadline(v, &c.disk.read_deadline); }},
    {"models.roots", "a list of absolute paths, such as [\"/srv/models\"]",
     [](Node& v, Config& c) { return SetFolders(v, &c.models.roots); }},
    {"models.readers", "\"owner\" or \"everyone\"",
     [](Node& v, Config& c) {
       return SetEnum<Readers>(
           v, &c.models.readers,
           {{"owner", Readers::kOwner}, {"everyone", Readers::kEveryone}});
     }},
    {"quota.sessions", kCountAllowed,
     [](Node& v, Config& c) {
       return SetCount<1, 1'000'000>(v, &c.quota.sessions);
     }},
    {"quota.plans", kCountAllowed,
     [](Node& v, Config& c) {
       return SetCount<1, 1'000'000>(v, &c.quota.plans);
     }},
    {"quota.models", kCountAllowed,
     [](Node& v, Config& c) {
       return SetCount<1, 1'000'000>(v, &c.quota.models);
     }},
    {"quota.descriptors", "\"auto\", or a whole number, 1 to 1000000",
     [](Node& v, Config& c) {
       return SetCountOrAuto(v, &c.quota.descriptors);
     }},
    {"quota.header_bytes", kSizeOrAutoAllowed,
     [](Node& v, Config& c) {
       return SetSizeOrAuto(v, &c.quota.header_bytes);
     }},
    {"quota.held_bytes", kQuotaAllowed,
     [](Node& v, Config& c) { return SetQuota(v, &c.quota.held_bytes); }},
    {"quota.published_bytes", kQuotaAllowed,
     [](Node& v, Config& c) { return SetQuota(v, &c.quota.published_bytes); }},
    {"quota.host_bytes", kQuotaAllowed,
     [](Node& v, Config& c) { return SetQuota(v, &c.quota.host_bytes); }},
    {"quota.device_bytes", kQuotaAllowed,
     [](Node& v, Config& c) { return SetQuota(v, &c.quota.device_bytes); }},
    {"metrics.socket",
     "an absolute path of at most 107 bytes, or \"\" for none",
     [](Node& v, Config& c) {
       return SetSocketPathOrNone(v, &c.metrics.socket);
     }},
    {"metrics.listen",
     "a loopback address and a port, such as \"127.0.0.1:9464\" or "
     "\"[::1]:9464\", or \"\" for none; for other machines put a proxy that "
     "asks who they are, or a node agent, before it",
     [](Node& v, Config& c) { return SetLoopback(v, &c.metrics.listen); }},
    {"metrics.models", "a whole number, 0 (none is named) to 1000",
     [](Node& v, Config& c) {
       return SetCount<0, 1000>(v, &c.metrics.models);
     }},
    {"log.level", "\"debug\", \"info\", \"warning\" or \"error\"",
     [](Node& v, Config& c) {
       using L = LogConfig::Level;
       return SetEnum<L>(v, &c.log.level,
                         {{"debug", L::kDebug},
                          {"info", L::kInfo},
                          {"warning", L::kWarning},
                          {"error", L::kError}});
     }},
    {"log.sink", "\"auto\", \"journal\" or \"stderr\"",
     [](Node& v, Config& c) {
       using S = LogConfig::Sink;
       return SetEnum<S>(v, &c.log.sink,
                         {{"auto", S::kAuto},
                          {"journal", S::kJournal},
                          {"stderr", S::kStderr}});
     }},
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
    // The right key in the wrong table.
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
