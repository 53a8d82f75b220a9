#include "tests/bench/daemon.h"

#include <signal.h>
#include <sys/stat.h>
#include <unistd.h>

#include <cctype>
#include <cstdio>
#include <cstdlib>
#include <filesystem>
#include <fstream>
#include <sstream>

#include "tests/bench/basics.h"

namespace hoist::bench {
namespace {

constexpr double kPatience = 120;  // Seconds; pinning may be slow.

std::string Camel(const std::string& name) {
  std::string camel;
  for (size_t i = 0; i < name.size(); ++i) {
    if (name[i] != '_') {
      camel += name[i];
    } else if (++i < name.size()) {
      camel += static_cast<char>(std::toupper(name[i]));
    }
  }
  return camel;
}

std::string FindOnPath(const std::string& program) {
  std::istringstream path(std::getenv("PATH") ? std::getenv("PATH") : "");
  std::string folder;
  while (std::getline(path, folder, ':')) {
    if (access((folder + "/" + program).c_str(), X_OK) == 0) {
      return folder + "/" + program;
    }
  }
  return "";
}

// Beside hoistd, or where a build tree has it, or on $PATH.
std::string FindCtl(const std::string& hoistd) {
  const auto folder = std::filesystem::path(hoistd).parent_path();
  for (const auto& path :
       {folder / "hoistctl", folder / "../client/ctl/hoistctl"}) {
    if (access(path.c_str(), X_OK) == 0) return path;
  }
  const std::string found = FindOnPath("hoistctl");
  if (found.empty()) Fail("there is no hoistctl beside " + hoistd);
  return found;
}

void WriteConfig(const std::string& folder, const RunOptions& options,
                 const DaemonSpec& spec) {
  std::ofstream config(folder + "/hoistd.toml");
  config << "[server]\nsocket = \"" << folder
         << "/hoistd.sock\"\ngrpc_socket = \"" << folder
         << "/hoistd.grpc.sock\"\ngroup = \"\"\nadmin_group = \"\"\n"
         << "[device]\nbackend = \""
         << (spec.device == DeviceKind::kCuda ? "cuda" : "emulated")
         << "\"\nshare = \"" << options.share
         << "\"\npool = " << spec.device_bytes << "\nslab = " << spec.slab_bytes
         << "\nload_rate = " << static_cast<uint64_t>(spec.load_rate * 1e9)
         << "\n"
         << "[device.emulated]\nlink = \"" << options.link
         << "\"\ncount = " << spec.devices << "\n"
         << "[models]\nroots = [\"" << options.scratch << "\"]\n"
         << "[host]\npool = " << spec.host_bytes << "\n"
         << "[log]\nsink = \"stderr\"\n";
  config.close();
  if (!config) Fail("cannot write a configuration in " + folder);
}

}  // namespace

std::string FindHoistd(const RunOptions& options) {
  if (!options.hoistd.empty()) return options.hoistd;
  const auto self =
      std::filesystem::read_symlink("/proc/self/exe").parent_path();
  for (const auto& path :
       {self / "hoistd", self / "../bin/hoistd", self / "../../bin/hoistd",
        self / "../../daemon/hoistd"}) {
    if (access(path.c_str(), X_OK) == 0) return path;
  }
  const std::string found = FindOnPath("hoistd");
  if (found.empty()) Fail("there is no hoistd to be found; give --hoistd");
  return found;
}

Daemon::Daemon(const RunOptions& options, const DaemonSpec& spec, int number)
    : folder_(options.scratch + "/hoistd-" + std::to_string(number)) {
  const std::string hoistd = FindHoistd(options);
  ctl_ = FindCtl(hoistd);
  mkdir(folder_.c_str(), 0700);
  WriteConfig(folder_, options, spec);
  started_at_ = Now();
  process_ = std::make_unique<ChildProcess>(
      ChildSpec{.arguments = {hoistd, "--config", folder_ + "/hoistd.toml"},
                .log = folder_ + "/log"});
  struct stat ignored;
  while (stat((folder_ + "/hoistd.grpc.sock").c_str(), &ignored) != 0 ||
         stat(socket().c_str(), &ignored) != 0) {
    if (!process_->Running() || Now() - started_at_ > kPatience) {
      Fail("hoistd did not start; it said:\n" + ReadText(folder_ + "/log"));
    }
    SleepFor(0.002);
  }
  start_seconds_ = Now() - started_at_;
}

Daemon::~Daemon() { process_->End(SIGTERM); }

std::string Daemon::Run(const std::string& command) const {
  const std::string line =
      "'" + ctl_ + "' --socket '" + folder_ + "/hoistd.grpc.sock' " + command;
  FILE* pipe = popen(line.c_str(), "r");
  if (pipe == nullptr) Fail("cannot run " + line);
  std::string text;
  char part[4096];
  while (size_t got = fread(part, 1, sizeof(part), pipe))
    text.append(part, got);
  if (pclose(pipe) != 0) Fail(line + " failed: " + text);
  return text;
}

void Daemon::Do(const std::string& command) const { Run(command); }

Json Daemon::Ctl(const std::string& command) const {
  const std::string text = Run(command + " --json");
  Json parsed = Json::parse(text, nullptr, false);
  if (parsed.is_discarded()) Fail(command + " printed no JSON: " + text);
  return parsed;
}

uint64_t ProtoNumber(const Json& object, const std::string& name) {
  for (const std::string& key : {name, Camel(name)}) {
    if (!object.contains(key)) continue;
    const Json& value = object[key];
    return value.is_string() ? std::stoull(value.get<std::string>())
                             : value.get<uint64_t>();
  }
  return 0;
}

uint64_t Daemon::Counter(const std::string& name) const {
  const Json status = Ctl("status");
  return status.contains("counters") ? ProtoNumber(status["counters"], name)
                                     : 0;
}

void Daemon::WaitWhole() const {
  const double begin = Now();
  for (;;) {
    const Json status = Ctl("status");
    for (const Json& tier : status["tiers"]) {
      if (tier.value("tier", "") != "TIER_HOST") continue;
      const uint64_t whole = ProtoNumber(tier, "capacity_bytes");
      if (ProtoNumber(tier, "allocated_bytes") >= whole && whole > 0) return;
    }
    if (Now() - begin > kPatience) Fail("the host pool does not get whole");
    SleepFor(0.02);
  }
}

}  // namespace hoist::bench
