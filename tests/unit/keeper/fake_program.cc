// What the tests of Keeper keep running, in the place of hoistd.
//
// fake_program MODE FILE: the first life does what MODE says; each later one is
// ready, and asks its keeper to stop. FILE gets a line of what a life found,
// and of a signal that told it to stop, if MODE is one that waits for it.
#include <poll.h>
#include <signal.h>
#include <systemd/sd-daemon.h>
#include <unistd.h>

#include <cstdint>
#include <cstdlib>
#include <fstream>
#include <functional>
#include <iostream>
#include <map>
#include <string>

namespace {

void Wait(int ms) { poll(nullptr, 0, ms); }

[[noreturn]] void Hang() {
  while (true) pause();
}

void Ready() { sd_notify(0, "READY=1"); }

// For so many intervals, with four signs in each.
void Live(int intervals) {
  uint64_t usec = 0;
  if (sd_watchdog_enabled(0, &usec) <= 0) std::exit(9);
  for (int i = 0; i < 4 * intervals; ++i) {
    sd_notify(0, "WATCHDOG=1");
    Wait(static_cast<int>(usec / 4000));
  }
}

const std::map<std::string, std::function<void()>> kModes = {
    {"hangs",
     [] {
       Ready();
       Hang();
     }},
    {"hangs-before-it-is-ready",
     [] {
       Wait(1500);
       std::exit(75);
     }},
    {"ignores-abort",
     [] {
       signal(SIGABRT, SIG_IGN);
       Ready();
       Hang();
     }},
    {"is-stopped",
     [] {
       Ready();
       raise(SIGSTOP);
       Hang();
     }},
    {"trigger",
     [] {
       sd_notify(0, "READY=1\nWATCHDOG=trigger");
       Hang();
     }},
    {"lives",
     [] {
       Ready();
       Live(2);
       std::exit(75);
     }},
    {"chooses",
     [] {
       sd_notify(0, "READY=1\nWATCHDOG_USEC=200000");
       Hang();
     }},
    {"stops-for-ever",
     [] {
       signal(SIGTERM, SIG_IGN);
       sd_notify(0, "READY=1\nSTOPPING=1");
       Hang();
     }},
    {"stops-longer",
     [] {
       sd_notify(0, "READY=1\nSTOPPING=1\nEXTEND_TIMEOUT_USEC=60000000");
       Wait(1500);
       std::exit(75);
     }},
};

// Sends SIGTERM to the keeper once this process is gone.
void StopKeeperAfterwards() {
  const pid_t keeper = getppid();
  const pid_t self = getpid();
  if (fork() != 0) return;
  if (fork() != 0) _exit(0);
  while (kill(self, 0) == 0) Wait(1);
  kill(keeper, SIGTERM);
  _exit(0);
}

// Later lives of these say that they were told to stop.
const std::map<std::string, std::function<void()>> kModesOfWriters = {
    {"is-told-late",
     [] {
       Ready();
       std::exit(75);
     }},
    {"is-told-between",
     [] {
       StopKeeperAfterwards();
       Ready();
       Wait(10);
       std::exit(75);
     }},
};

// Takes long until it can write down what the first life stored.
[[noreturn]] void BeWriter(const std::string& mode, const char* file) {
  if (mode == "is-told-late") {
    kill(getppid(), SIGTERM);
    Wait(500);
  }
  sigset_t term;
  sigemptyset(&term);
  sigaddset(&term, SIGTERM);
  sigprocmask(SIG_BLOCK, &term, nullptr);
  Ready();
  int got = 0;
  sigwait(&term, &got);
  std::ofstream(file, std::ios::app) << "told" << std::endl;
  std::exit(0);
}

const char* Or(const char* text, const char* otherwise) {
  return text != nullptr ? text : otherwise;
}

}  // namespace

int main(int argc, char** argv) {
  const bool writer = argc == 3 && kModesOfWriters.contains(argv[1]);
  if (argc != 3 || (!writer && !kModes.contains(argv[1]))) {
    std::cerr << "usage: fake_program MODE FILE\n";
    return 2;
  }
  const bool first = !std::ifstream(argv[2]).good();
  const char* pid = std::getenv("WATCHDOG_PID");
  std::ofstream(argv[2], std::ios::app)
      << "usec=" << Or(std::getenv("WATCHDOG_USEC"), "none") << " pid="
      << (pid == nullptr                    ? "none"
          : std::to_string(getpid()) == pid ? "own"
                                            : "other")
      << " fds=" << Or(std::getenv("LISTEN_FDS"), "0") << std::endl;
  if (first) {
    int ends[2];
    if (pipe(ends) != 0) return 2;
    sd_pid_notify_with_fds(0, 0, "FDSTORE=1\nFDNAME=kept", ends, 1);
    (writer ? kModesOfWriters : kModes).at(argv[1])();
    return 3;
  }
  if (writer) BeWriter(argv[1], argv[2]);
  Ready();
  kill(getppid(), SIGTERM);
  Hang();
}
