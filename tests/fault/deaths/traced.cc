#include "tests/fault/deaths/traced.h"

#include <signal.h>
#include <spawn.h>
#include <sys/ptrace.h>
#include <sys/syscall.h>
#include <sys/wait.h>
#include <unistd.h>

namespace hoistd::testing {
namespace {

constexpr int kSystemCall = SIGTRAP | 0x80;

class Tracer {
 public:
  Tracer(pid_t process, DeathPlace place) : process_(process), place_(place) {}

  Death Run() {
    int status = 0;
    if (waitpid(process_, &status, 0) != process_ || !WIFSTOPPED(status)) {
      return death_;
    }
    ptrace(PTRACE_SETOPTIONS, process_, nullptr,
           PTRACE_O_TRACESYSGOOD | PTRACE_O_TRACECLONE | PTRACE_O_EXITKILL);
    Resume(process_, 0);
    while (true) {
      // Its threads, and nobody else's children.
      const pid_t thread = waitpid(-process_, &status, __WALL);
      if (thread < 0) return death_;
      if (WIFSTOPPED(status)) {
        OnStop(thread, status);
      } else if (thread == process_) {
        death_.killed = WIFSIGNALED(status);
        if (WIFEXITED(status)) death_.code = WEXITSTATUS(status);
        return death_;
      }
    }
  }

 private:
  void OnStop(pid_t thread, int status) {
    const int signal = WSTOPSIG(status);
    if (signal == kSystemCall) {
      OnSystemCall(thread);
    } else if (signal == SIGTRAP && (status >> 16) == 0 &&
               thread == stepping_) {
      if (--left_ == 0) kill(process_, SIGKILL);
      Resume(thread, 0);
    } else if (signal == SIGTRAP || signal == SIGSTOP) {
      Resume(thread, 0);  // Of a new thread, or the one that made it.
    } else {
      Resume(thread, signal);
    }
  }

  void OnSystemCall(pid_t thread) {
    if (!begun_) {
      __ptrace_syscall_info info = {};
      ptrace(static_cast<__ptrace_request>(PTRACE_GET_SYSCALL_INFO), thread,
             sizeof(info), &info);
      begun_ =
          info.op == PTRACE_SYSCALL_INFO_ENTRY && info.entry.nr == SYS_connect;
    }
    if (begun_ && ++death_.stops == place_.stop) {
      stepping_ = thread;
      left_ = place_.instructions;
      if (left_ == 0) kill(process_, SIGKILL);
    }
    Resume(thread, 0);
  }

  void Resume(pid_t thread, int signal) {
    ptrace(
        thread == stepping_ && left_ > 0 ? PTRACE_SINGLESTEP : PTRACE_SYSCALL,
        thread, nullptr, static_cast<intptr_t>(signal));
  }

  const pid_t process_;
  const DeathPlace place_;
  Death death_;
  bool begun_ = false;
  pid_t stepping_ = 0;
  uint64_t left_ = 0;
};

}  // namespace

Death RunTraced(const std::vector<std::string>& command, DeathPlace place) {
  std::vector<char*> argv;
  for (const std::string& word : command) {
    argv.push_back(const_cast<char*>(word.c_str()));
  }
  argv.push_back(nullptr);
  posix_spawnattr_t attributes;
  posix_spawnattr_init(&attributes);
  // A group of its own, so that its threads can be waited for.
  posix_spawnattr_setflags(&attributes, POSIX_SPAWN_SETPGROUP);
  pid_t process = -1;
  const int failed = posix_spawn(&process, argv[0], nullptr, &attributes,
                                 argv.data(), environ);
  posix_spawnattr_destroy(&attributes);
  if (failed != 0) return {};
  return Tracer(process, place).Run();
}

}  // namespace hoistd::testing
