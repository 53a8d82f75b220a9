// hoist-bench: what hoist reaches, beside what the machine can do.
//
// Each run starts a hoistd of its own and ends it. The work is done in a child,
// so that processes, sockets and model files go away however it ends.
#include <signal.h>
#include <stdlib.h>
#include <sys/prctl.h>
#include <sys/wait.h>
#include <unistd.h>

#include <filesystem>
#include <vector>

#include "hoist/shared/cuda_driver.h"
#include "tests/bench/basics.h"
#include "tests/bench/run_options.h"

namespace hoist::bench {

DeviceKind ChosenDevice(const RunOptions& options) {
  if (options.device == "cuda") return DeviceKind::kCuda;
  if (options.device == "emulated") return DeviceKind::kEmulated;
  return cuda::Driver::Load().ok() ? DeviceKind::kCuda : DeviceKind::kEmulated;
}

namespace {

void AddShared(CLI::App& app, RunOptions& options) {
  app.add_option("--hoistd", options.hoistd,
                 "hoistd (default: beside this program, ../bin, PATH)");
  app.add_option("--device", options.device, "auto, cuda or emulated")
      ->check(CLI::IsMember({"auto", "cuda", "emulated"}));
  app.add_option("--share", options.share, "vmm or ipc")
      ->check(CLI::IsMember({"vmm", "ipc"}));
  app.add_option("--link", options.link,
                 "the emulated device's link, e.g. 2GB/s; 0: memory's speed");
  app.add_option("--cublas", options.cublas, "libcublas.so to load");
  app.add_option("--json", options.json, "write JSON there; - is stdout");
  app.add_option("--folder", options.folder, "where a run's files go");
}

// Runs `command` in a child, waits for it and removes its files.
int Supervise(const Command& command, RunOptions options) {
  std::string folder = options.folder + "/hoist-bench-XXXXXX";
  if (mkdtemp(folder.data()) == nullptr) {
    Fail("cannot make a folder in " + options.folder + "; see --folder");
  }
  options.scratch = folder;
  sigset_t awaited, before;
  sigemptyset(&awaited);
  for (int number : {SIGCHLD, SIGINT, SIGTERM}) sigaddset(&awaited, number);
  sigprocmask(SIG_BLOCK, &awaited, &before);
  const pid_t child = fork();
  if (child == 0) {
    sigprocmask(SIG_SETMASK, &before, nullptr);
    prctl(PR_SET_PDEATHSIG, SIGKILL);
    command.run(options);
    std::exit(0);
  }
  int number = 0;
  sigwait(&awaited, &number);
  if (number != SIGCHLD) kill(child, SIGKILL);
  int status = 0;
  waitpid(child, &status, 0);  // What it started ends with it.
  std::error_code error;
  std::filesystem::remove_all(folder, error);
  if (WIFSIGNALED(status)) {
    std::fprintf(stderr, "hoist-bench: ended by signal %d\n", WTERMSIG(status));
    return 1;
  }
  return WEXITSTATUS(status);
}

int Main(int argc, char** argv) {
  CLI::App app("Measures hoist beside the machine's own limits.",
               "hoist-bench");
  app.require_subcommand(1);
  app.fallthrough();
  RunOptions options;
  AddShared(app, options);
  const std::vector<Command> commands = {
      StreamCommand(app), SlowdownCommand(app), HotpathCommand(app),
      AttachCommand(app), PolicyCommand(app),   FairnessCommand(app),
      BesideCommand(app), PoolCommand(app),     DiskCommand(app),
      WorkerCommand(app)};
  CLI11_PARSE(app, argc, argv);
  for (const Command& command : commands) {
    if (!command.app->parsed()) continue;
    if (command.app->get_name() == "worker") {
      command.run(options);
      return 0;
    }
    return Supervise(command, options);
  }
  return 2;
}

}  // namespace
}  // namespace hoist::bench

int main(int argc, char** argv) { return hoist::bench::Main(argc, argv); }
