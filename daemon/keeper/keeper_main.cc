// hoist-keeper: see keeper.h.
#include <spdlog/sinks/stdout_color_sinks.h>
#include <spdlog/spdlog.h>
#include <unistd.h>

#include <CLI/CLI.hpp>
#include <cstdlib>
#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "absl/strings/str_cat.h"
#include "absl/time/time.h"
#include "daemon/base/inherited.h"
#include "daemon/keeper/keeper.h"
#include "hoist/shared/socket_path.h"

namespace hoistd {
namespace {

// The unit's folder by systemd; else the user's.
hoist::Result<std::string> DefaultFolder() {
  const char* runtime = std::getenv("RUNTIME_DIRECTORY");
  if (runtime != nullptr && *runtime != '\0') return std::string(runtime);
  return hoist::MakeUserSocketFolder();
}

// hoistd sends WATCHDOG=1 twice a second.
constexpr absl::Duration kShortestWatchdog = absl::Seconds(1);

absl::StatusOr<absl::Duration> ParseWatchdog(const std::string& text) {
  absl::Duration interval;
  if (text == "off" || text == "0") return absl::ZeroDuration();
  if (!absl::ParseDuration(text, &interval) || interval < kShortestWatchdog ||
      interval > absl::Hours(24)) {
    return absl::InvalidArgumentError(absl::StrCat(
        "--watchdog ", text,
        ": give 1s to 24h with its unit, such as 30s or 2m, or off"));
  }
  return interval;
}

int Main(int argc, char** argv) {
  const absl::Status set = SetInherited();
  spdlog::set_default_logger(spdlog::stderr_color_mt("hoist-keeper"));
  if (!set.ok()) {
    spdlog::error("{}", std::string(set.message()));
    return EXIT_FAILURE;
  }
  EndWithoutMemory("hoist-keeper", EXIT_FAILURE);
  CLI::App app(
      "hoist-keeper keeps hoistd running and holds what it leaves behind, as "
      "systemd does where there is one.");
  KeeperOptions options;
  app.add_option("--dir", options.dir,
                 "a folder of its own for its socket and locks (default: "
                 "$RUNTIME_DIRECTORY, or the user's runtime folder)");
  std::string watchdog = "60s";
  app.add_option("--watchdog", watchdog,
                 "a program that has given no sign of life (sd_notify's "
                 "WATCHDOG=1) for so long is ended, and started again with "
                 "what it stored; off: it is not watched (default: 60s)")
      ->type_name("TIME");
  app.add_option("COMMAND", options.command,
                 "what to keep running, with its arguments behind --: "
                 "hoist-keeper -- hoistd --user")
      ->required();
  app.set_version_flag("--version", "hoist-keeper " HOIST_VERSION);
  CLI11_PARSE(app, argc, argv);
  const absl::StatusOr<absl::Duration> interval = ParseWatchdog(watchdog);
  if (!interval.ok()) {
    spdlog::error("{}", std::string(interval.status().message()));
    return EXIT_FAILURE;
  }
  options.watchdog = *interval;
  if (options.dir.empty()) {
    hoist::Result<std::string> folder = DefaultFolder();
    if (!folder.ok()) {
      spdlog::error("{}", folder.status().message());
      return EXIT_FAILURE;
    }
    options.dir = *folder;
  }
  absl::StatusOr<std::unique_ptr<Keeper>> keeper =
      Keeper::Create(options, TakeHandedFds());
  if (!keeper.ok()) {
    spdlog::error("{}", std::string(keeper.status().message()));
    return EXIT_FAILURE;
  }
  return (*keeper)->Run();
}

}  // namespace
}  // namespace hoistd

int main(int argc, char** argv) { return hoistd::Main(argc, argv); }
