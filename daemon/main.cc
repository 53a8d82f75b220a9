// hoistd: reads its configuration, serves until it is told to stop.
#include <signal.h>
#include <spdlog/sinks/stdout_color_sinks.h>
#include <spdlog/sinks/systemd_sink.h>
#include <spdlog/spdlog.h>
#include <sys/resource.h>
#include <systemd/sd-daemon.h>
#include <unistd.h>

#include <CLI/CLI.hpp>
#include <cstdio>
#include <cstdlib>
#include <string>

#include "absl/status/statusor.h"
#include "daemon/config/config.h"
#include "daemon/hoistd.h"

namespace hoistd {
namespace {

constexpr char kDefaultConfig[] = "/etc/hoist/hoistd.toml";
constexpr int kExitRefused = 1;  // The configuration, or the machine.

void SetUpLog(const LogConfig& config) {
  const bool journal = config.sink == LogConfig::Sink::kJournal ||
                       (config.sink == LogConfig::Sink::kAuto &&
                        std::getenv("JOURNAL_STREAM") != nullptr);
  spdlog::set_default_logger(journal ? spdlog::systemd_logger_mt("hoistd")
                                     : spdlog::stderr_color_mt("hoistd"));
  switch (config.level) {
    case LogConfig::Level::kDebug:
      spdlog::set_level(spdlog::level::debug);
      break;
    case LogConfig::Level::kInfo:
      spdlog::set_level(spdlog::level::info);
      break;
    case LogConfig::Level::kWarning:
      spdlog::set_level(spdlog::level::warn);
      break;
    case LogConfig::Level::kError:
      spdlog::set_level(spdlog::level::err);
      break;
  }
  // A line is worth most right before a crash.
  spdlog::flush_on(spdlog::level::info);
}

// Sessions and slabs take descriptors: as many as we may have.
void RaiseDescriptorLimit() {
  rlimit limit;
  if (getrlimit(RLIMIT_NOFILE, &limit) != 0) return;
  limit.rlim_cur = limit.rlim_max;
  setrlimit(RLIMIT_NOFILE, &limit);
}

// The session socket, where systemd opened it for us.
hoist::UniqueFd SocketFromSystemd() {
  if (sd_listen_fds(/*unset_environment=*/1) < 1) return hoist::UniqueFd();
  return hoist::UniqueFd(SD_LISTEN_FDS_START);
}

int Run(const Config& config) {
  SetUpLog(config.log);
  RaiseDescriptorLimit();
  // Taken by sigwait below; all threads inherit the mask.
  sigset_t stop;
  sigemptyset(&stop);
  sigaddset(&stop, SIGTERM);
  sigaddset(&stop, SIGINT);
  pthread_sigmask(SIG_BLOCK, &stop, nullptr);
  signal(SIGPIPE, SIG_IGN);

  absl::StatusOr<std::unique_ptr<Hoistd>> hoistd =
      Hoistd::Create(config, SocketFromSystemd());
  if (!hoistd.ok()) {
    spdlog::error("hoistd cannot start: {}",
                  std::string(hoistd.status().message()));
    return kExitRefused;
  }
  const std::string summary = (*hoistd)->Summary();
  spdlog::info("hoistd {} serves {}: {}", HOIST_VERSION, config.server.socket,
               summary);
  sd_notifyf(0, "READY=1\nSTATUS=%s", summary.c_str());

  int got = 0;
  sigwait(&stop, &got);
  spdlog::info("stopping ({})", got == SIGTERM ? "SIGTERM" : "SIGINT");
  sd_notify(0, "STOPPING=1");
  hoistd->reset();
  return EXIT_SUCCESS;
}

int Main(int argc, char** argv) {
  CLI::App app(
      "hoistd keeps the weights of models in GPU memory, pinned host RAM and "
      "NVMe, and stages them for the workers of this node.");
  std::string path;
  bool check = false;
  app.add_option("-c,--config", path,
                 std::string("hoistd.toml (default: ") + kDefaultConfig +
                     ", if it exists)");
  app.add_flag("--check-config", check, "read the configuration and exit");
  app.set_version_flag("--version", "hoistd " HOIST_VERSION);
  CLI11_PARSE(app, argc, argv);

  if (path.empty() && access(kDefaultConfig, F_OK) == 0) path = kDefaultConfig;
  absl::StatusOr<Config> config = path.empty() ? Config() : LoadConfig(path);
  if (!config.ok()) {
    std::fprintf(stderr, "hoistd: %s\n",
                 std::string(config.status().message()).c_str());
    return kExitRefused;
  }
  if (check) {
    std::printf("%s: fine\n", path.empty() ? "(defaults)" : path.c_str());
    return EXIT_SUCCESS;
  }
  return Run(*config);
}

}  // namespace
}  // namespace hoistd

int main(int argc, char** argv) { return hoistd::Main(argc, argv); }
