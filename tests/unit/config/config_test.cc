#include "daemon/config/config.h"

#include <fstream>
#include <map>
#include <sstream>
#include <string>
#include <utility>
#include <vector>

#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "tests/support/status_matchers.h"

namespace hoistd::config_test {

using ::hoistd::testing::StatusIs;
using ::testing::AllOf;
using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::Not;
using ::testing::Pair;
using ::testing::StartsWith;

constexpr auto kInvalid = absl::StatusCode::kInvalidArgument;

absl::StatusOr<Config> Parse(const std::string& text) {
  return ParseConfig(text, "x.toml");
}

// Every key, none as by default.
constexpr char kEveryKey[] = R"(
[server]
socket = "/tmp/a.sock"
grpc_socket = "/tmp/b.sock"
socket_mode = "0600"
group = ""
admin_group = "wheel"
max_sessions = 64
[device]
backend = "emulated"
share = "ipc"
trust = "everyone"
pool = "2GiB"
headroom = "1GiB"
slab = "64MiB"
load_rate = "10GB/s"
emulated.count = 2
emulated.link = "55GB/s"
emulated.latency = "10us"
emulated.others = "3GiB"
[host]
pool = 4096
pageable = "16GiB"
in_place = 0
arenas = "above"
touch_threads = 3
huge_pages = "transparent"
[disk]
io = "threads"
direct = "never"
spill_dir = "/var/lib/hoist/spill"
save = "under_pressure"
spill_capacity = "1TiB"
[models]
roots = ["/srv/models", "/mnt/more"]
readers = "everyone"
[[models.preload]]
path = "/srv/models/a"
[[models.preload]]
path = "/srv/models/b"
name = "bee"
tier = "device"
device = 1
pin = true
[quota]
sessions = 1
plans = 2
models = 3
descriptors = 4
header_bytes = "5MiB"
held_bytes = "50%"
published_bytes = "3GiB"
host_bytes = "70%"
device_bytes = 4096
[idle]
after = "90s"
[metrics]
socket = "/tmp/m.sock"
listen = "127.0.0.2:9464"
models = 7
[log]
level = "debug"
sink = "stderr"
)";

TEST(Config, ShippedFileHoldsTheDefaults) {
  ASSERT_OK_AND_ASSIGN(const Config config, LoadConfig(HOIST_SHIPPED_CONFIG));
  EXPECT_TRUE(config == Config());
}

TEST(Config, ShippedFileNamesEveryKey) {
  std::stringstream text;
  text << std::ifstream(HOIST_SHIPPED_CONFIG).rdbuf();
  // A key is named if taking its line out makes a file that differs, so each
  // `leaf =` must stand below its table's header.
  for (const std::string& key : ConfigKeys()) {
    const size_t dot = key.rfind('.');
    const size_t table = text.str().find("\n[" + key.substr(0, dot) + "]\n");
    ASSERT_NE(table, std::string::npos) << key;
    const size_t end = text.str().find("\n[", table + 1);
    const std::string section = text.str().substr(table, end - table);
    EXPECT_THAT(section, HasSubstr("\n" + key.substr(dot + 1) + " = ")) << key;
  }
}

TEST(Config, WhatIsShownIsReadAsTheSame) {
  ASSERT_OK_AND_ASSIGN(const Config config, Parse(kEveryKey));
  ConfigBase shown;
  for (const ConfigValue& one : ConfigValues(config)) {
    shown.settings.push_back(one.key + "=" + one.value);
  }
  ASSERT_OK_AND_ASSIGN(const Config again, ParseConfig("", "x.toml", shown));
  EXPECT_TRUE(again == config);
  EXPECT_EQ(shown.settings.size(), ConfigKeys().size());
}

TEST(Config, ATenantsValuesAreShownByItsName) {
  ASSERT_OK_AND_ASSIGN(const Config config, Parse(R"(
[quota]
plans = 7
[[tenant]]
name = "a"
socket = "/t/a \"b\""
quota.plans = 9
)"));
  std::map<std::string, std::string> found;
  for (const ConfigValue& one : ConfigValues(config)) {
    found[one.key] = one.value;
  }
  EXPECT_EQ(found["quota.plans"], "7");
  EXPECT_EQ(found["tenant.a.quota.plans"], "9");
  EXPECT_EQ(found["tenant.a.socket"], R"("/t/a \"b\"")");
  EXPECT_EQ(found["tenant.a.quota.held_bytes"], R"("auto")");
}

TEST(Config, EmptyFileIsTheDefaults) {
  ASSERT_OK_AND_ASSIGN(const Config config, Parse(""));
  EXPECT_TRUE(config == Config());
}

TEST(Config, ReadsEveryKey) {
  ASSERT_OK_AND_ASSIGN(const Config config, Parse(kEveryKey));
  EXPECT_EQ(config.server.socket, "/tmp/a.sock");
  EXPECT_EQ(config.server.grpc_socket, "/tmp/b.sock");
  EXPECT_EQ(config.server.socket_mode, 0600u);
  EXPECT_EQ(config.server.group, "");
  EXPECT_EQ(config.server.admin_group, "wheel");
  EXPECT_EQ(config.server.max_sessions, 64u);
  EXPECT_EQ(config.idle.after, absl::Seconds(90));
  EXPECT_EQ(config.device.backend, DeviceConfig::Backend::kEmulated);
  EXPECT_EQ(config.device.share, DeviceConfig::Share::kIpc);
  EXPECT_EQ(config.device.pool_bytes, uint64_t{2} << 30);
  EXPECT_EQ(config.device.headroom_bytes, uint64_t{1} << 30);
  EXPECT_EQ(config.device.slab_bytes, uint64_t{64} << 20);
  EXPECT_EQ(config.device.load_bytes_per_s, 10'000'000'000u);
  EXPECT_EQ(config.device.emulated.count, 2u);
  EXPECT_EQ(config.device.emulated.link_bytes_per_s, 55'000'000'000u);
  EXPECT_EQ(config.device.emulated.latency, absl::Microseconds(10));
  EXPECT_EQ(config.device.emulated.others_bytes, uint64_t{3} << 30);
  EXPECT_EQ(config.host.pool_bytes, 4096u);
  EXPECT_EQ(config.host.pageable_bytes, uint64_t{16} << 30);
  EXPECT_EQ(config.host.in_place_bytes, 0u);
  EXPECT_EQ(config.host.touch_threads, 3u);
  EXPECT_EQ(config.host.huge_pages, PageKind::kTransparent);
  EXPECT_EQ(config.host.arenas, HostConfig::Arenas::kAbove);
  EXPECT_EQ(config.disk.io, DiskConfig::Io::kThreads);
  EXPECT_EQ(config.disk.direct, DiskConfig::Direct::kNever);
  EXPECT_EQ(config.disk.spill_dir, "/var/lib/hoist/spill");
  EXPECT_EQ(config.disk.save, DiskConfig::Save::kUnderPressure);
  EXPECT_EQ(config.disk.spill_capacity_bytes, uint64_t{1} << 40);
  EXPECT_THAT(config.models.roots, ElementsAre("/srv/models", "/mnt/more"));
  EXPECT_EQ(config.models.readers, Readers::kEveryone);
  ASSERT_EQ(config.models.preload.size(), 2u);
  EXPECT_TRUE(config.models.preload[0] ==
              PreloadConfig{.path = "/srv/models/a"});
  EXPECT_TRUE(config.models.preload[1] ==
              (PreloadConfig{.path = "/srv/models/b",
                             .name = "bee",
                             .tier = PreloadConfig::Tier::kDevice,
                             .device = 1,
                             .pin = true}));
  EXPECT_EQ(config.quota.sessions, 1u);
  EXPECT_EQ(config.quota.plans, 2u);
  EXPECT_EQ(config.quota.models, 3u);
  EXPECT_EQ(config.quota.descriptors, 4u);
  EXPECT_EQ(config.quota.header_bytes, uint64_t{5} << 20);
  EXPECT_EQ(config.quota.held_bytes, SizeOrPercent{.percent = 50});
  EXPECT_EQ(config.quota.published_bytes,
            SizeOrPercent{.bytes = uint64_t{3} << 30});
  EXPECT_EQ(config.quota.host_bytes, SizeOrPercent{.percent = 70});
  EXPECT_EQ(config.quota.device_bytes, SizeOrPercent{.bytes = 4096});
  EXPECT_EQ(config.metrics.socket, "/tmp/m.sock");
  EXPECT_EQ(config.metrics.listen, "127.0.0.2:9464");
  EXPECT_EQ(config.metrics.models, 7u);
  EXPECT_EQ(config.log.level, LogConfig::Level::kDebug);
  EXPECT_EQ(config.log.sink, LogConfig::Sink::kStderr);
}

struct Refusal {
  const char* text;
  const char* where;    // File, line and key.
  const char* allowed;  // What would be enough.
};

class ConfigRefusal : public ::testing::TestWithParam<Refusal> {};

TEST_P(ConfigRefusal, NamesFileLineKeyAndWhatIsAllowed) {
  EXPECT_THAT(Parse(GetParam().text),
              StatusIs(kInvalid, AllOf(StartsWith(GetParam().where),
                                       HasSubstr(GetParam().allowed))));
}

INSTANTIATE_TEST_SUITE_P(
    All, ConfigRefusal,
    ::testing::Values(
        Refusal{"[server]\nsocket = \"hoistd.sock\"\n",
                "x.toml:2: server.socket: ", "absolute path"},
        Refusal{"[server]\nmax_sessions = 0\n",
                "x.toml:2: server.max_sessions: 0 ", "1 to 65536"},
        Refusal{"[server]\nsocket = 7\n", "x.toml:2: server.socket: 7 ",
                "absolute path"},
        Refusal{"\n\n[server]\nsocket_mode = \"0888\"\n",
                "x.toml:4: server.socket_mode: ", "octal"},
        Refusal{"[server]\nsocket_mode = 660\n",
                "x.toml:2: server.socket_mode: ", "octal"},
        Refusal{"[device]\nbackend = \"gpu\"\n", "x.toml:2: device.backend: ",
                "\"auto\", \"cuda\" or \"emulated\""},
        Refusal{"[device]\nshare = \"VMM\"\n",
                "x.toml:2: device.share: ", "\"vmm\" or \"ipc\""},
        Refusal{"[device]\npool = \"lots\"\n",
                "x.toml:2: device.pool: ", "\"64GiB\""},
        Refusal{"[device]\npool = 0\n", "x.toml:2: device.pool: ", "\"auto\""},
        Refusal{"[device]\npool = -5\n", "x.toml:2: device.pool: ", "\"auto\""},
        Refusal{"[device]\nslab = \"3MB\"\n",
                "x.toml:2: device.slab: ", "2MiB"},
        Refusal{"[device.emulated]\ncount = 0\n",
                "x.toml:2: device.emulated.count: ", "1 to 64"},
        Refusal{"[device]\nload_rate = \"fast\"\n",
                "x.toml:2: device.load_rate: ", "\"0\" is unlimited"},
        Refusal{"[device.emulated]\nlink = \"55\"\n",
                "x.toml:2: device.emulated.link: ", "\"55GB/s\""},
        Refusal{"[device.emulated]\nlatency = \"-1s\"\n",
                "x.toml:2: device.emulated.latency: ", "\"10us\""},
        Refusal{"[idle]\nafter = \"2h\"\n",
                "x.toml:2: idle.after: ", "\"never\", or a time"},
        Refusal{"[host]\nin_place = \"some\"\n",
                "x.toml:2: host.in_place: ", "or \"auto\""},
        Refusal{"[host]\ntouch_threads = 1.5\n",
                "x.toml:2: host.touch_threads: ", "whole number"},
        Refusal{"[disk]\nio = true\n", "x.toml:2: disk.io: ", "\"io_uring\""},
        Refusal{"[models]\nroots = \"/srv\"\n",
                "x.toml:2: models.roots: ", "a list"},
        Refusal{"[models]\nroots = [\"/srv\", \"\"]\n",
                "x.toml:2: models.roots: ", "absolute"},
        Refusal{"[log]\nlevel = \"loud\"\n",
                "x.toml:2: log.level: ", "\"warning\""},
        Refusal{"[quota]\nsessions = 0\n",
                "x.toml:2: quota.sessions: ", "1 to 1000000"},
        Refusal{"[quota]\ndescriptors = 0\n",
                "x.toml:2: quota.descriptors: ", "\"auto\""},
        Refusal{"[quota]\nheader_bytes = \"5%\"\n",
                "x.toml:2: quota.header_bytes: ", "\"auto\""},
        Refusal{"[quota]\ndevice_bytes = \"120%\"\n",
                "x.toml:2: quota.device_bytes: ", "\"50%\""},
        Refusal{"[quota]\nheld_bytes = 0\n",
                "x.toml:2: quota.held_bytes: ", "\"auto\""},
        Refusal{"[metrics]\nlisten = \"0.0.0.0:9464\"\n",
                "x.toml:2: metrics.listen: ", "put a proxy"},
        Refusal{"[metrics]\nlisten = \"127.0.0.1\"\n",
                "x.toml:2: metrics.listen: ", "\"127.0.0.1:9464\""},
        Refusal{"[metrics]\nsocket = \"here\"\n",
                "x.toml:2: metrics.socket: ", "absolute"},
        Refusal{"[metrics]\nmodels = 1001\n",
                "x.toml:2: metrics.models: ", "0 (none is named) to 1000"},
        Refusal{"[metrics]\nsocket = \"/run/hoist/hoistd.sock\"\n",
                "x.toml:2: metrics.socket: ", "its own path"},
        Refusal{"device = 3\n", "x.toml:1: device: ", "[device]"},
        Refusal{"[server]\nsocket = \"/a\"\ngrpc_socket = \"/a\"\n",
                "x.toml:3: server.grpc_socket: ", "its own path"},
        Refusal{"[disk]\nspill_capacity = \"1GiB\"\n",
                "x.toml:2: disk.spill_capacity: ", "spill_dir"},
        Refusal{"[device]\npool = \"2MiB\"\n",
                "x.toml:2: device.pool: ", "device.slab"}));

TEST(Config, UnknownKeyIsRefusedWithTheNearest) {
  EXPECT_THAT(
      Parse("[device]\nbackendd = \"cuda\"\n"),
      StatusIs(kInvalid, AllOf(StartsWith("x.toml:2: device.backendd: no such"),
                               HasSubstr("did you mean device.backend?"))));
  // The right key in the wrong table.
  EXPECT_THAT(Parse("[host]\nspill_dir = \"/x\"\n"),
              StatusIs(kInvalid, HasSubstr("did you mean disk.spill_dir?")));
  EXPECT_THAT(Parse("[modells]\nroots = []\n"),
              StatusIs(kInvalid, HasSubstr("modells")));
}

TEST(Config, UnknownKeyLikeNoneGetsNoGuess) {
  EXPECT_THAT(Parse("qqqqqqqqqqqqq = 1\n"),
              StatusIs(kInvalid, Not(HasSubstr("did you mean"))));
}

TEST(Config, BrokenTomlNamesTheLine) {
  EXPECT_THAT(Parse("[server]\nsocket = \"a\n"),
              StatusIs(kInvalid, StartsWith("x.toml:2: not TOML: ")));
  EXPECT_THAT(Parse("[server]\n[server]\n"),
              StatusIs(kInvalid, StartsWith("x.toml:2: not TOML: ")));
  EXPECT_THAT(Parse("socket = \"\xff\"\n"), StatusIs(kInvalid));
}

TEST(Config, AllThatIsWrongIsToldAtOnceInALineEach) {
  ConfigBase base;
  base.settings = {"host.pol=1GiB", "device.pool"};
  EXPECT_THAT(
      ParseConfig("[device]\nbackendd = \"cuda\"\npool = \"2MiB\"\n"
                  "[disk]\nio = \"fast\"\nspill_capacity = \"1GiB\"\n"
                  "[[tenant]]\nname = \"A\"\nqota = 1\n"
                  "[[tenant]]\nname = \"b\"\n",
                  "x.toml", base),
      StatusIs(kInvalid,
               AllOf(StartsWith("x.toml:2: device.backendd: "),
                     HasSubstr("\nx.toml:3: device.pool: is 2097152"),
                     HasSubstr("\nx.toml:5: disk.io: "),
                     HasSubstr("\nx.toml:6: disk.spill_capacity: "),
                     HasSubstr("\n--set: host.pol: "),
                     HasSubstr("\n--set: device.pool: "),
                     HasSubstr("\nx.toml:9: tenant.qota: "),
                     HasSubstr("\nx.toml:7: tenant.name: "),
                     HasSubstr("\nx.toml:10: tenant.socket: is missing"))));
}

TEST(Config, TellsWhereEachKeyWasSetLast) {
  ConfigBase base;
  base.settings = {"device.pool=1GiB"};
  ConfigPlaces places;
  ASSERT_OK(ParseConfig("[device]\npool = \"2GiB\"\nslab = \"2MiB\"\n",
                        "x.toml", base, &places));
  EXPECT_THAT(places, ElementsAre(Pair("device.pool", "--set"),
                                  Pair("device.slab", "x.toml:3")));
}

TEST(Config, MissingFileIsNotFoundAndNamed) {
  EXPECT_THAT(LoadConfig("/nonexistent/hoistd.toml"),
              StatusIs(absl::StatusCode::kNotFound,
                       HasSubstr("/nonexistent/hoistd.toml")));
}

absl::StatusOr<Config> ParseWith(const std::string& text,
                                 std::vector<std::string> settings) {
  ConfigBase base;
  base.settings = std::move(settings);
  return ParseConfig(text, "x.toml", base);
}

TEST(Config, SettingsWinOverTheFileAndTheLastOverTheFirst) {
  ASSERT_OK_AND_ASSIGN(
      const Config config,
      ParseWith("[device]\npool = \"2GiB\"\n",
                {"device.pool=1GiB", "device.pool=512MiB", "disk.io=threads",
                 "device.emulated.count=3", "host.pool = \"64MiB\"",
                 "models.roots=[\"/a\", \"/b\"]", "server.group="}));
  EXPECT_EQ(config.device.pool_bytes, uint64_t{512} << 20);
  EXPECT_EQ(config.disk.io, DiskConfig::Io::kThreads);
  EXPECT_EQ(config.device.emulated.count, 3u);
  EXPECT_THAT(config.models.roots, ElementsAre("/a", "/b"));
  EXPECT_EQ(config.server.group, "");
}

TEST(Config, AWrongSettingIsRefusedAsInAFile) {
  EXPECT_THAT(ParseWith("", {"device.pol=1GiB"}),
              StatusIs(kInvalid, AllOf(StartsWith("--set: device.pol: "),
                                       HasSubstr("mean device.pool?"))));
  EXPECT_THAT(ParseWith("", {"disk.io=fast"}),
              StatusIs(kInvalid, HasSubstr("\"threads\"")));
  EXPECT_THAT(ParseWith("", {"device=1"}),
              StatusIs(kInvalid, HasSubstr("is a table")));
  EXPECT_THAT(ParseWith("", {"device.pool"}),
              StatusIs(kInvalid, HasSubstr("KEY=VALUE")));
  // What goes beyond its line is text, not another key.
  EXPECT_THAT(ParseWith("", {"disk.io=\"auto\"\nv2 = 1"}),
              StatusIs(kInvalid, StartsWith("--set: disk.io: ")));
  EXPECT_THAT(ParseWith("[device]\nslab = \"1GiB\"\n", {"device.pool=512MiB"}),
              StatusIs(kInvalid, StartsWith("--set: device.pool: ")));
}

TEST(Config, GrpcsSocketFollowsTheSessions) {
  ASSERT_OK_AND_ASSIGN(const Config config,
                       ParseWith("", {"server.socket=/a/b.sock"}));
  EXPECT_EQ(config.server.grpc_socket, "/a/b.grpc.sock");
}

TEST(Config, TheMetricsSocketFollowsTheSessions) {
  ASSERT_OK_AND_ASSIGN(const Config beside,
                       ParseWith("", {"server.socket=/a/b.sock"}));
  EXPECT_EQ(beside.metrics.socket, "/a/b.metrics.sock");
  ASSERT_OK_AND_ASSIGN(
      const Config none,
      ParseWith("", {"server.socket=/a/b.sock", "metrics.socket="}));
  EXPECT_EQ(none.metrics.socket, "");
}

TEST(Config, AUsersOwnIsForThatUserAlone) {
  ConfigBase base;
  base.defaults = UserDefaults("/run/user/1/hoist");
  ASSERT_OK_AND_ASSIGN(const Config config, ParseConfig("", "x.toml", base));
  EXPECT_EQ(config.server.socket, "/run/user/1/hoist/hoistd.sock");
  EXPECT_EQ(config.server.grpc_socket, "/run/user/1/hoist/hoistd.grpc.sock");
  EXPECT_EQ(config.metrics.socket, "/run/user/1/hoist/hoistd.metrics.sock");
  EXPECT_EQ(config.server.socket_mode, 0600u);
  EXPECT_EQ(config.server.group, "");
  EXPECT_EQ(config.server.admin_group, "");
}

TEST(Config, TenantsBeginWithWhatTheRestOfTheFileSays) {
  ASSERT_OK_AND_ASSIGN(const Config config, ParseWith(R"(
[[tenant]]
name = "team-a"
socket = "/run/a.sock"
[tenant.quota]
models = 3
[[tenant]]
name = "b"
socket = "/run/b.sock"
grpc_socket = "/run/b.grpc.sock"
socket_mode = "0666"
group = "bees"
quota = { held_bytes = "10%", plans = 1 }
[quota]
plans = 7
[server]
group = "all"
)",
                                                      {"quota.models=9"}));
  ASSERT_EQ(config.tenants.size(), 2u);
  TenantConfig a = {.name = "team-a", .socket = "/run/a.sock", .group = "all"};
  a.quota.plans = 7;
  a.quota.models = 3;
  EXPECT_EQ(config.tenants[0], a);
  TenantConfig b = {.name = "b",
                    .socket = "/run/b.sock",
                    .grpc_socket = "/run/b.grpc.sock",
                    .socket_mode = 0666,
                    .group = "bees"};
  b.quota.plans = 1;
  b.quota.models = 9;
  b.quota.held_bytes = SizeOrPercent{.percent = 10};
  EXPECT_EQ(config.tenants[1], b);
  EXPECT_EQ(config.quota.plans, 7u);
}

INSTANTIATE_TEST_SUITE_P(
    Tenants, ConfigRefusal,
    ::testing::Values(
        Refusal{"[tenant]\nname = \"a\"\n", "x.toml:1: tenant: ", "[[tenant]]"},
        Refusal{"tenant = 3\n", "x.toml:1: tenant: ", "[[tenant]]"},
        Refusal{"[[tenant]]\nsocket = \"/a\"\n",
                "x.toml:1: tenant.name: ", "a-z"},
        Refusal{"[[tenant]]\nname = \"7\"\nsocket = \"/a\"\n",
                "x.toml:1: tenant.name: ", "a-z"},
        Refusal{"[[tenant]]\nname = \"a\"\n",
                "x.toml:1: tenant.socket: ", "absolute"},
        Refusal{"[[tenant]]\nname = \"a\"\nsocket = \"a\"\n",
                "x.toml:3: tenant.socket: ", "absolute"},
        Refusal{"[[tenant]]\nname = \"a\"\nadmin_group = \"a\"\n",
                "x.toml:3: tenant.admin_group: ", "quota.KEY"},
        Refusal{"[[tenant]]\nname = \"a\"\nsocket = \"/a\"\n"
                "[tenant.quota]\nplan = 3\n",
                "x.toml:5: tenant.quota.plan: ", "quota.KEY"},
        Refusal{"[[tenant]]\nname = \"a\"\nsocket = \"/a\"\n"
                "[tenant.quota]\nplans = 0\n",
                "x.toml:5: tenant.quota.plans: ", "1 to 1000000"},
        Refusal{"[[tenant]]\nname = \"a\"\nsocket = \"/a\"\n"
                "[[tenant]]\nname = \"a\"\nsocket = \"/b\"\n",
                "x.toml:4: tenant.name: ", "another name"},
        Refusal{"[[tenant]]\nname = \"a\"\n"
                "socket = \"/run/hoist/hoistd.sock\"\n",
                "x.toml:1: tenant.socket: ", "its own path"}));

}  // namespace hoistd::config_test
