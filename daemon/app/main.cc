// hoistd: reads its configuration and serves until a signal stops it.
#include <fcntl.h>
#include <signal.h>
#include <spdlog/sinks/stdout_color_sinks.h>
#include <spdlog/spdlog.h>
#include <sys/eventfd.h>
#include <sys/resource.h>
#include <systemd/sd-daemon.h>
#include <unistd.h>

#include <CLI/CLI.hpp>
#include <algorithm>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <ctime>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "absl/status/statusor.h"
#include "absl/strings/str_split.h"
#include "absl/strings/string_view.h"
#include "absl/time/clock.h"
#include "absl/time/time.h"
#include "daemon/app/hoistd.h"
#include "daemon/app/preflight.h"
#include "daemon/app/running_config.h"
#include "daemon/base/inherited.h"
#include "daemon/keeper/fd_store.h"
#include "daemon/keeper/keeper_watch.h"
#include "daemon/log/log.h"
#include "daemon/types/tier.h"
#include "hoist/shared/unique_fd.h"

namespace hoistd {
namespace {

constexpr char kDefaultConfig[] = "/etc/hoist/hoistd.toml";
constexpr int kExitRefused = 1;  // A fault of configuration or machine.
// The same, while the supervisor holds the last hoistd's memory. The supervisor
// must retry, or that memory is lost; the pause bounds its rate.
constexpr int kExitKept = 75;  // sysexits.h: EX_TEMPFAIL.
constexpr absl::Duration kPause = absl::Seconds(1);

// Call before TakeHandedFds.
int RefusedStatus() {
  return std::getenv("LISTEN_FDS") == nullptr ? kExitRefused : kExitKept;
}

int Refuse(int status) {
  if (status == kExitKept) absl::SleepFor(kPause);
  return status;
}

// Grows the kernel's descriptor table to its final size while there is one
// thread. With several threads each growth waits for an RCU grace period
// (fs/file.c: expand_fdtable): seconds on a busy machine, in which no thread
// gets a descriptor. Takes 512 KiB of kernel memory.
void GrowDescriptorTable() {
  constexpr rlim_t kDescriptors = 65536;
  rlimit limit;
  const hoist::UniqueFd any(eventfd(0, EFD_CLOEXEC));
  if (!any.valid() || getrlimit(RLIMIT_NOFILE, &limit) != 0) return;
  const rlim_t last = std::min(limit.rlim_cur, kDescriptors) - 1;
  const hoist::UniqueFd far(
      fcntl(any.get(), F_DUPFD_CLOEXEC, static_cast<int>(last)));
}

// Waits for a signal. Meanwhile feeds systemd's watchdog while the engine
// answers, and watches the keeper.
int AwaitSignal(const sigset_t& awaited, Hoistd& hoistd, KeeperWatch& keeper) {
  constexpr timespec kLook = {0, 500'000'000};
  uint64_t watchdog = 0;
  const bool watched = sd_watchdog_enabled(0, &watchdog) > 0;
  bool told = false;
  while (true) {
    int got = 0;
    if (!keeper.has_keeper() && !watched) {
      sigwait(&awaited, &got);
      return got;
    }
    got = sigtimedwait(&awaited, nullptr, &kLook);
    if (got > 0) return got;
    if (watched && hoistd.Lives()) sd_notify(0, "WATCHDOG=1");
    if (!keeper.has_keeper() || !keeper.Gone()) continue;
    if (!std::exchange(told, true)) hoistd.KeeperGone();
    if (keeper.Renew() && hoistd.StoreAgain().ok()) told = false;
  }
}

// --check-config: reports all faults that a start would find.
int Check(const RunningConfig& config) {
  const std::string file = config.source().file();
  spdlog::set_default_logger(spdlog::stderr_color_mt("hoistd"));
  spdlog::set_level(spdlog::level::err);
  const std::vector<std::string> faults =
      FindFaults(config.at_start(), config.places_at_start(), file);
  for (const std::string& fault : faults) {
    std::fprintf(stderr, "hoistd: %s\n", fault.c_str());
  }
  if (!faults.empty()) return kExitRefused;
  std::printf("%s: fine\n", file.c_str());
  return EXIT_SUCCESS;
}

// Returns the name of the stop signal, without "SIG". SIGHUP stops hoistd on a
// terminal, and reloads the configuration otherwise.
const char* AwaitStop(const sigset_t& awaited, bool on_terminal,
                      RunningConfig& config, Hoistd& hoistd) {
  KeeperWatch keeper;
  while (true) {
    const int got = AwaitSignal(awaited, hoistd, keeper);
    if (got != SIGHUP || on_terminal) return sigabbrev_np(got);
    config.Reload().IgnoreError();  // The log has the result.
  }
}

// Writes images that a stop would lose. Ends early after a second signal, or
// when the disk makes no progress.
void SavePublished(const sigset_t& awaited, Hoistd& hoistd) {
  constexpr timespec kLook = {0, 100'000'000};
  constexpr int kLooksWithoutProgress = 50;
  uint64_t least = UINT64_MAX;
  int looks = 0;
  const uint64_t left = hoistd.SavePublished([&](uint64_t bytes) {
    if (bytes < least) {
      least = bytes;
      looks = 0;
      // Longer than the wait for progress below.
      sd_notifyf(0, "EXTEND_TIMEOUT_USEC=%d\nSTATUS=Writing %s to the disk",
                 30'000'000, HumanBytes(bytes).c_str());
    }
    if (++looks > kLooksWithoutProgress) return false;
    const int got = sigtimedwait(&awaited, nullptr, &kLook);
    return got <= 0 || got == SIGHUP;
  });
  if (left > 0) {
    SPDLOG_WARN("{} of published images are on no disk", HumanBytes(left));
  }
}

int Run(RunningConfig& config) {
  Log log(config.at_start().log);
  const bool on_terminal = isatty(STDIN_FILENO) == 1;
  const sigset_t awaited = AwaitedSignals();  // Blocked in all threads.

  // First: the helper forks without threads and pools.
  const int refused = RefusedStatus();
  absl::StatusOr<std::unique_ptr<HelperSpawner>> spawner =
      HelperSpawner::Start();
  GrowDescriptorTable();
  const absl::Status begun =
      spawner.ok() ? log.KeepTelling() : spawner.status();
  if (!begun.ok()) {
    SPDLOG_ERROR("hoistd cannot start: {}", std::string(begun.message()));
    return Refuse(refused);
  }
  const std::unique_ptr<FdStore> store = NotifyFdStore();
  std::vector<HandedFd> handed = TakeHandedFds();
  absl::StatusOr<std::unique_ptr<Hoistd>> hoistd =
      Hoistd::Create(config, std::move(handed), store.get(), **spawner,
                     [](const std::string& status) {
                       sd_notifyf(0, "STATUS=%s", status.c_str());
                     });
  if (!hoistd.ok()) {
    SPDLOG_ERROR("hoistd cannot start: {}",
                 std::string(hoistd.status().message()));
    return Refuse(refused);
  }
  const std::string summary = (*hoistd)->Summary();
  SPDLOG_INFO("hoistd {} serves {}: {}", HOIST_VERSION,
              config.at_start().server.socket, summary);
  sd_notifyf(0, "READY=1\nSTATUS=%s", summary.c_str());

  SPDLOG_INFO("stopping (SIG{})",
              AwaitStop(awaited, on_terminal, config, **hoistd));
  sd_notify(0, "STOPPING=1");
  SavePublished(awaited, **hoistd);
  hoistd->reset();
  return EXIT_SUCCESS;
}

int Main(int argc, char** argv) {
  if (const absl::Status s = SetInherited(); !s.ok()) {
    std::fprintf(stderr, "hoistd cannot start: %s\n",
                 std::string(s.message()).c_str());
    return Refuse(RefusedStatus());
  }
  EndWithoutMemory("hoistd", kExitKept);
  CLI::App app(
      "hoistd keeps the weights of models in GPU memory, pinned host RAM and "
      "NVMe, and stages them for the workers of this node.");
  ConfigSource source;
  bool check = false;
  app.add_option("-c,--config", source.path,
                 std::string("hoistd.toml (default: ") + kDefaultConfig +
                     ", if it exists; with --user none)");
  app.add_flag("--user", source.user,
               "a hoistd of your own, for you alone: needs no root, group or "
               "file, and your workers and hoistctl find it by themselves");
  app.add_option("--set", source.settings,
                 "KEY=VALUE, a key of hoistd.toml, such as device.pool=8GiB; "
                 "may be given many times, and wins over the file")
      ->take_all()
      ->allow_extra_args(false);
  app.add_flag("--check-config", check,
               "read the configuration, look for what it counts on (groups, "
               "folders, memory, devices), and exit");
  app.set_version_flag("--version", "hoistd " HOIST_VERSION);
  CLI11_PARSE(app, argc, argv);

  if (source.path.empty() && !source.user &&
      access(kDefaultConfig, F_OK) == 0) {
    source.path = kDefaultConfig;
  }
  const absl::StatusOr<std::unique_ptr<RunningConfig>> config =
      RunningConfig::Read(std::move(source));
  if (!config.ok()) {
    for (const absl::string_view line :
         absl::StrSplit(config.status().message(), '\n')) {
      std::fprintf(stderr, "hoistd: %s\n", std::string(line).c_str());
    }
    return check ? kExitRefused : Refuse(RefusedStatus());
  }
  return check ? Check(**config) : Run(**config);
}

}  // namespace
}  // namespace hoistd

int main(int argc, char** argv) { return hoistd::Main(argc, argv); }
