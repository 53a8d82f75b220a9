// A hoistd for one test: a real process on an emulated device.
#ifndef HOIST_TESTS_SUPPORT_REAL_HOISTD_H_
#define HOIST_TESTS_SUPPORT_REAL_HOISTD_H_

#include <fcntl.h>
#include <signal.h>
#include <spawn.h>
#include <sys/wait.h>
#include <unistd.h>

#include <cstdint>
#include <fstream>
#include <string>
#include <vector>

#include "hoist/hoist.h"
#include "tests/support/temp_dir.h"

namespace hoistd::testing {

struct RealHoistdOptions {
  uint64_t device_bytes = uint64_t{64} << 20;
  uint64_t slab_bytes = uint64_t{2} << 20;
  uint64_t host_bytes = uint64_t{128} << 20;
  const char* link = "0";  // "16KiB/s"; "0": as fast as memory goes.
  bool spill = false;
  const char* keeper = nullptr;  // hoist-keeper's path: hoistd runs under it.
};

// Threads: one at a time.
// Owns:    the process, which ends with it, and its folder.
class RealHoistd {
 public:
  // `binary`: hoistd's path.
  RealHoistd(const char* binary, const RealHoistdOptions& options = {})
      : binary_(binary), keeper_(options.keeper) {
    std::ofstream config(folder_ / "hoistd.toml");
    config << "[server]\nsocket = \"" << socket() << "\"\ngrpc_socket = \""
           << folder_ / "grpc.sock"
           << "\"\ngroup = \"\"\nadmin_group = \"\"\n[device]\nbackend = "
              "\"emulated\"\npool = "
           << options.device_bytes << "\nslab = " << options.slab_bytes
           << "\n[device.emulated]\nlink = \"" << options.link
           << "\"\n[host]\npool = " << options.host_bytes
           << "\n[log]\nsink = \"stderr\"\n";
    if (options.spill) {
      config << "[disk]\nspill_dir = \"" << folder_ / "spill"
             << "\"\n";
    }
    config.close();
    Start();
  }
  RealHoistd(const RealHoistd&) = delete;
  RealHoistd& operator=(const RealHoistd&) = delete;
  ~RealHoistd() { End(SIGTERM); }

  // Again, after Kill(). Callers connect with a deadline.
  void Start() {
    const std::string path = folder_ / "hoistd.toml", dir = folder_ / "";
    std::vector<const char*> argv;
    if (keeper_ != nullptr) argv = {keeper_, "--dir", dir.c_str(), "--"};
    argv.insert(argv.end(), {binary_, "--config", path.c_str(), nullptr});
    posix_spawn_file_actions_t files;
    posix_spawn_file_actions_init(&files);
    const std::string log = folder_ / "log";
    posix_spawn_file_actions_addopen(&files, STDERR_FILENO, log.c_str(),
                                     O_WRONLY | O_CREAT | O_APPEND, 0600);
    if (posix_spawn(&pid_, argv[0], &files, nullptr,
                    const_cast<char* const*>(argv.data()), environ) != 0) {
      pid_ = -1;
    }
    posix_spawn_file_actions_destroy(&files);
  }
  // A crash: hoistd itself releases nothing.
  void Kill() { End(SIGKILL); }

  std::string socket() const { return folder_ / "hoistd.sock"; }
  std::string grpc_socket() const { return folder_ / "grpc.sock"; }
  pid_t pid() const { return pid_; }  // The keeper's, if there is one.
  // Of the hoistd under the keeper; 0: none at the moment.
  pid_t kept() const {
    const std::string pid = std::to_string(pid_);
    std::ifstream children("/proc/" + pid + "/task/" + pid + "/children");
    pid_t child = 0;
    return children >> child ? child : 0;
  }
  std::string Log() const {
    std::ifstream log(folder_ / "log");
    return {std::istreambuf_iterator<char>(log), {}};
  }
  hoist::Result<hoist::Session> Connect(const std::string& name = "test") {
    hoist::ConnectOptions options;
    options.socket_path = socket();
    options.client_name = name;
    options.connect_deadline = std::chrono::seconds(30);
    return hoist::Session::Connect(options);
  }

 private:
  void End(int signal) {
    if (pid_ <= 0) return;
    kill(pid_, signal);
    waitpid(pid_, nullptr, 0);
    pid_ = -1;
  }

  const TempDir folder_;
  const char* const binary_;
  const char* const keeper_;
  pid_t pid_ = -1;
};

}  // namespace hoistd::testing

#endif  // HOIST_TESTS_SUPPORT_REAL_HOISTD_H_
