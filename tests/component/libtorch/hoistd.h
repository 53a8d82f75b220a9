// A hoistd that a test kills, and starts again.
#ifndef HOIST_TESTS_COMPONENT_LIBTORCH_HOISTD_H_
#define HOIST_TESTS_COMPONENT_LIBTORCH_HOISTD_H_

#include <fcntl.h>
#include <hoist/hoist.h>
#include <sys/prctl.h>
#include <sys/wait.h>
#include <unistd.h>

#include <chrono>
#include <csignal>
#include <cstdio>
#include <string>
#include <thread>

#include "check.h"

namespace hoist_check {

inline void Kill() {
  EXPECT(kill(hoistd, SIGKILL) == 0);
  waitpid(hoistd, nullptr, 0);  // The first one is another's child.
  while (TryToConnect().ok()) std::this_thread::yield();
  // Its socket may outlast the process for a moment.
  while (TryToConnect().status().message().find("no hoistd listens") ==
         std::string::npos) {
    std::this_thread::yield();
  }
}

inline pid_t Fork() {
  const pid_t child = fork();
  if (child == 0) {
    prctl(PR_SET_PDEATHSIG, SIGKILL);
    const int nothing = open("/dev/null", O_WRONLY);
    dup2(nothing, STDOUT_FILENO);
    dup2(nothing, STDERR_FILENO);
    execl(binary.c_str(), binary.c_str(), "--config", config.c_str(), nullptr);
    _exit(127);
  }
  return child;
}

// The kernel closes a dead process's files one by one. A successor that starts
// before the lock is free is refused, and started again, as systemd does.
inline void Start() {
  hoistd = Fork();
  while (!TryToConnect().ok()) {
    if (waitpid(hoistd, nullptr, WNOHANG) == hoistd) hoistd = Fork();
    std::this_thread::yield();
  }
}

inline void KillAndStart() {
  Kill();
  Start();
}

// After hoistd's death. A GPU's results may be void between passes, too; that
// is told once.
template <typename World>
void PassAgain(World& world) {
  hoist::Status passed = world.Pass();
  if (!passed.ok() && !world.attached->device().is_cpu()) passed = world.Pass();
  Ok(passed);
}

// The output of hoistctl.
inline std::string Ctl(const std::string& words) {
  const std::string command =
      hoistctl + " --socket " + socket_path + " " + words;
  FILE* const out = popen(command.c_str(), "r");
  std::string said;
  char part[4096];
  while (fgets(part, sizeof(part), out) != nullptr) said += part;
  EXPECT(pclose(out) == 0);
  return said;
}

}  // namespace hoist_check

#endif  // HOIST_TESTS_COMPONENT_LIBTORCH_HOISTD_H_
