#include "daemon/base/inherited.h"

#include <fcntl.h>
#include <sys/resource.h>
#include <unistd.h>

#include <cerrno>
#include <fstream>
#include <new>
#include <string>

#include "absl/strings/str_cat.h"
#include "daemon/base/status.h"
#include "hoist/shared/unique_fd.h"

namespace hoistd {
namespace {

// Signal 0 does not exist.
constexpr int kFirstSignal = 1;

// False: there is no /dev/null.
bool OpenStandardDescriptors() {
  while (true) {
    // open() returns the lowest free number.
    hoist::UniqueFd null(open("/dev/null", O_RDWR | O_CLOEXEC));
    if (!null.valid()) return false;
    if (null.get() > STDERR_FILENO) return true;
    fcntl(null.release(), F_SETFD, 0);
  }
}

// Runs before main and before any library's initializer: some open an eventfd
// there.
void OpenBeforeLibraries(int, char**, char**) { OpenStandardDescriptors(); }

[[gnu::section(".preinit_array"),
  gnu::used]] void (*const kBeforeLibraries)(int, char**,
                                             char**) = &OpenBeforeLibraries;

void SetSignals() {
  struct sigaction action = {};
  sigemptyset(&action.sa_mask);
  for (int signal = kFirstSignal; signal <= SIGRTMAX; ++signal) {
    const bool ignored = UseOf(signal) == SignalUse::kIgnored;
    action.sa_handler = ignored ? SIG_IGN : SIG_DFL;
    // Fails for SIGKILL, SIGSTOP and glibc's own.
    sigaction(signal, &action, nullptr);
  }
  const sigset_t awaited = AwaitedSignals();
  sigprocmask(SIG_SETMASK, &awaited, nullptr);
}

// The soft limit is a default of shells and units; the hard one is intended.
void RaiseToHardLimit(__rlimit_resource_t resource) {
  rlimit limit;
  if (getrlimit(resource, &limit) != 0) return;
  limit.rlim_cur = limit.rlim_max;
  setrlimit(resource, &limit);
}

// At this limit SIGKILL would end the process with all its holdings.
absl::Status LiftCpuLimit() {
  rlimit limit;
  if (getrlimit(RLIMIT_CPU, &limit) != 0 || limit.rlim_max == RLIM_INFINITY) {
    return absl::OkStatus();
  }
  const rlimit none = {RLIM_INFINITY, RLIM_INFINITY};
  if (setrlimit(RLIMIT_CPU, &none) == 0) return absl::OkStatus();
  return absl::FailedPreconditionError(absl::StrCat(
      "the kernel would end this program after ", limit.rlim_max,
      " s of CPU time (RLIMIT_CPU); start it without that limit: ulimit -t "
      "unlimited, systemd's LimitCPU=infinity"));
}

absl::Status CheckDescriptors() {
  rlimit limit;
  if (getrlimit(RLIMIT_NOFILE, &limit) != 0 ||
      limit.rlim_cur >= kFewestDescriptors) {
    return absl::OkStatus();
  }
  return absl::FailedPreconditionError(absl::StrCat(
      "this program may have ", limit.rlim_cur,
      " descriptors (RLIMIT_NOFILE), and needs ", kFewestDescriptors,
      " at least; raise it: ulimit -n, systemd's LimitNOFILE"));
}

std::string LimitText(__rlimit_resource_t resource) {
  rlimit limit;
  if (getrlimit(resource, &limit) != 0 || limit.rlim_cur == RLIM_INFINITY) {
    return "unlimited";
  }
  return absl::StrCat(limit.rlim_cur);
}

// The message, made while there is memory for it, and the exit status.
struct MemoryEnd {
  std::string text;
  int status = 0;
};

// A global, since operator new's handler has no argument.
MemoryEnd& TheMemoryEnd() {
  static MemoryEnd* const end = new MemoryEnd;  // Never destroyed.
  return *end;
}

}  // namespace

SignalUse UseOf(int signal) {
  switch (signal) {
    case SIGTERM:  // Stop, in order.
    case SIGINT:
    case SIGQUIT:
    case SIGHUP:  // Read hoistd.toml again; of a terminal: stop.
      return SignalUse::kAwaited;
    case SIGPIPE:  // Writes fail instead, with EPIPE,
    case SIGXFSZ:  // and with EFBIG.
    case SIGXCPU:  // Of the soft limit, which is no bound.
    case SIGTTOU:  // The log of a job in the background goes on,
    case SIGTTIN:  // and nothing is read from the terminal.
    case SIGALRM:
    case SIGVTALRM:
    case SIGPROF:
    case SIGIO:
    case SIGPWR:
    case SIGUSR1:
    case SIGUSR2:
    case SIGSTKFLT:
      return SignalUse::kIgnored;
    case SIGABRT:  // And of a watchdog.
    case SIGBUS:
    case SIGFPE:
    case SIGILL:
    case SIGSEGV:
    case SIGSYS:
    case SIGTRAP:
      return SignalUse::kFault;
    default:
      return signal >= SIGRTMIN && signal <= SIGRTMAX ? SignalUse::kIgnored
                                                      : SignalUse::kSystem;
  }
}

sigset_t AwaitedSignals() {
  sigset_t awaited;
  sigemptyset(&awaited);
  for (int signal = kFirstSignal; signal <= SIGRTMAX; ++signal) {
    if (UseOf(signal) == SignalUse::kAwaited) sigaddset(&awaited, signal);
  }
  return awaited;
}

absl::Status SetInherited() {
  if (!OpenStandardDescriptors()) return ErrnoToStatus(errno, "/dev/null");
  SetSignals();
  RaiseToHardLimit(RLIMIT_NOFILE);  // Sessions and slabs take descriptors,
  RaiseToHardLimit(RLIMIT_FSIZE);   // which are files as large as a pool,
  RaiseToHardLimit(RLIMIT_AS);      // and mapped,
  RaiseToHardLimit(RLIMIT_DATA);    // beside what the books take;
  RaiseToHardLimit(RLIMIT_NPROC);   // threads are counted here.
  HOIST_RETURN_IF_ERROR(CheckDescriptors());
  return LiftCpuLimit();
}

absl::Status CheckAddresses() {
  rlimit limit;
  uint64_t pages = 0;
  if (getrlimit(RLIMIT_AS, &limit) != 0 || limit.rlim_cur == RLIM_INFINITY ||
      !(std::ifstream("/proc/self/statm") >> pages)) {
    return absl::OkStatus();
  }
  const uint64_t mapped = pages * static_cast<uint64_t>(sysconf(_SC_PAGESIZE));
  const uint64_t least = mapped + kFewestAddressBytes;
  if (limit.rlim_cur >= least) return absl::OkStatus();
  return absl::FailedPreconditionError(
      absl::StrCat("this program may map ", limit.rlim_cur,
                   " bytes (RLIMIT_AS), has ", mapped, " mapped, and needs ",
                   least, " at least; raise it: ulimit -v, systemd's LimitAS"));
}

void EndWithoutMemory(absl::string_view program, int status) {
  TheMemoryEnd() = {
      absl::StrCat(program, " ends: it has no memory left (RLIMIT_AS ",
                   LimitText(RLIMIT_AS), ", RLIMIT_DATA ",
                   LimitText(RLIMIT_DATA),
                   ", or the machine's); raise the limit (ulimit -v, "
                   "systemd's LimitAS, LimitDATA)\n"),
      status};
  std::set_new_handler([] {
    const MemoryEnd& end = TheMemoryEnd();
    if (write(STDERR_FILENO, end.text.data(), end.text.size()) < 0) {
      // stderr has no reader.
    }
    _exit(end.status);
  });
}

void ResetSignals() {
  struct sigaction action = {};
  action.sa_handler = SIG_DFL;
  sigemptyset(&action.sa_mask);
  for (int signal = kFirstSignal; signal <= SIGRTMAX; ++signal) {
    sigaction(signal, &action, nullptr);
  }
  sigset_t none;
  sigemptyset(&none);
  sigprocmask(SIG_SETMASK, &none, nullptr);
}

}  // namespace hoistd
