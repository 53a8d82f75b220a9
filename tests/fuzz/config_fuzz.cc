// hoistd.toml, and what --set says beside it.
#include "daemon/config/config.h"
#include "daemon/config/size.h"
#include "daemon/types/user.h"
#include "tests/fuzz/fuzz.h"

namespace hoistd {
namespace {

void RequireSocket(const std::string& path, bool may_be_empty) {
  if (may_be_empty && path.empty()) return;
  // sockaddr_un's path, and a NUL behind it.
  FUZZ_REQUIRE(!path.empty() && path[0] == '/' && path.size() < 108);
  FUZZ_REQUIRE(path.find('\0') == std::string::npos);
}

void RequireDuration(absl::Duration duration, absl::Duration most) {
  FUZZ_REQUIRE(duration >= absl::ZeroDuration() && duration <= most);
}

// Percent of 1 to 100, or bytes that are not none.
void RequireAmount(const std::optional<SizeOrPercent>& amount) {
  if (!amount.has_value()) return;
  FUZZ_REQUIRE(amount->percent <= 100);
  FUZZ_REQUIRE(amount->percent > 0 || amount->bytes > 0);
  FUZZ_REQUIRE(amount->percent == 0 ||
               amount->Of(uint64_t{1} << 40) <= uint64_t{1} << 40);
}

void RequireQuota(const QuotaConfig& quota) {
  FUZZ_REQUIRE(quota.sessions > 0 && quota.plans > 0 && quota.models > 0);
  for (const auto& amount : {quota.held_bytes, quota.published_bytes,
                             quota.host_bytes, quota.device_bytes}) {
    RequireAmount(amount);
  }
}

void RequireSound(const Config& config) {
  RequireSocket(config.server.socket, false);
  RequireSocket(config.server.grpc_socket, false);
  FUZZ_REQUIRE(config.server.socket_mode <= 0777);
  FUZZ_REQUIRE(config.server.max_sessions > 0);
  FUZZ_REQUIRE(config.device.slab_bytes > 0 &&
               config.device.slab_bytes % (2 << 20) == 0);
  if (config.device.pool_bytes.has_value()) {
    FUZZ_REQUIRE(*config.device.pool_bytes >= config.device.slab_bytes);
  }
  RequireDuration(config.device.emulated.latency, absl::Minutes(1));
  RequireDuration(config.disk.read_deadline, absl::Hours(1));
  FUZZ_REQUIRE(!config.host.pool_bytes.has_value() ||
               *config.host.pool_bytes > 0);
  RequireQuota(config.quota);
  FUZZ_REQUIRE(config.tenants.size() <= kMostTenants);
  std::vector<std::string> sockets = {config.server.socket,
                                      config.server.grpc_socket};
  for (const TenantConfig& tenant : config.tenants) {
    FUZZ_REQUIRE(User::Tenant(tenant.name).has_value());
    RequireSocket(tenant.socket, false);
    RequireSocket(tenant.grpc_socket, true);
    RequireQuota(tenant.quota);
    sockets.push_back(tenant.socket);
    if (!tenant.grpc_socket.empty()) sockets.push_back(tenant.grpc_socket);
  }
  // Whose a client is says the socket: no two are one.
  std::sort(sockets.begin(), sockets.end());
  FUZZ_REQUIRE(std::adjacent_find(sockets.begin(), sockets.end()) ==
               sockets.end());
}

// Shown and read again, the same values come back; of tenants, whose keys are
// shown by their names, those keys alone are left out.
void RequireRoundTrip(const Config& config) {
  Config want = config;
  want.tenants.clear();
  std::string shown;
  for (const ConfigValue& one : ConfigValues(want)) {
    shown += one.key + " = " + one.value + "\n";
  }
  const auto again = ParseConfig(shown, "shown");
  FUZZ_REQUIRE(again.ok() && *again == want);
  FUZZ_REQUIRE(ConfigValues(config).size() >= ConfigValues(want).size());
}

constexpr char kSeed[] = R"([server]
socket = "/tmp/a.sock"
socket_mode = "0600"
max_sessions = 64
[device]
backend = "emulated"
pool = "2GiB"
slab = "64MiB"
load_rate = "10GB/s"
emulated = {count = 2, link = "55GB/s", latency = "10us"}
[host]
pool = 4096
[disk]
spill_dir = "/var/lib/hoist/spill"
spill_capacity = "1 TiB"
read_deadline = "30s"
[models]
roots = ["/models", '/b']
readers = "everyone"
[quota]
held_bytes = "50%"
published_bytes = "auto"
[log]
level = "debug"
[[tenant]]
name = "a"
socket = "/run/hoist/a.sock"
quota.sessions = 3
[[tenant]]
name = "b-2"
socket = "/run/hoist/b.sock"
grpc_socket = "/run/hoist/b.grpc.sock"
)";

}  // namespace

namespace fuzz {

Seeds MakeSeeds() {
  const std::string none(1, '\0');
  return {{"all", none + kSeed},
          {"set",
           "\x02"
           "device.pool=64MiB\nhost.pool=\"1GiB\"\n" +
               std::string("[disk]\nio = \"threads\"\n")},
          {"empty", none}};
}

}  // namespace fuzz
}  // namespace hoistd

// u8 lines that --set gives, those, then the file.
extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  using namespace hoistd;
  fuzz::Input input(data, size);
  ConfigBase base;
  const int settings = input.Take() % 4;
  std::string_view text = input.Rest();
  for (int i = 0; i < settings; ++i) {
    const size_t end = std::min(text.find('\n'), text.size());
    base.settings.emplace_back(text.substr(0, end));
    text.remove_prefix(std::min(text.size(), end + 1));
  }
  const auto config =
      ParseConfig({text.data(), text.size()}, "fuzz.toml", base);
  if (config.ok()) {
    RequireSound(*config);
    RequireRoundTrip(*config);
  } else {
    FUZZ_REQUIRE(absl::IsInvalidArgument(config.status()));
    FUZZ_REQUIRE(!config.status().message().empty());
  }
  return 0;
}
