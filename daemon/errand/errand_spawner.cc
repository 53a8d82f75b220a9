#include "daemon/errand/errand_spawner.h"

#include <fcntl.h>
#include <signal.h>
#include <sys/prctl.h>
#include <sys/socket.h>
#include <sys/syscall.h>
#include <sys/wait.h>
#include <unistd.h>

#include <cerrno>
#include <cstdlib>
#include <utility>

#include "daemon/base/status.h"
#include "daemon/errand/errand.h"
#include "daemon/errand/errand_line.h"

namespace hoistd {
namespace {

constexpr int kLine = STDERR_FILENO + 1;

// Nothing of what hoistd has open may stay open here: a client that waits for
// its connection's end would wait for whatever hangs in this process.
void KeepOnly(int line) {
  const int null = open("/dev/null", O_RDWR);
  for (int fd = 0; fd < kLine; ++fd) dup2(null, fd);
  if (line != kLine) dup2(line, kLine);
  if (syscall(SYS_close_range, kLine + 1, ~0U, 0) == 0) return;
  for (int fd = kLine + 1; fd < sysconf(_SC_OPEN_MAX); ++fd) close(fd);
}

[[noreturn]] void RunErrands() {
  while (true) {
    hoist::Packet request = HearMore(kLine);
    std::string_view body = request.body;
    Errand errand = nullptr;
    if (!Unpack(body, errand)) _exit(EXIT_FAILURE);
    request.body.erase(0, sizeof(errand));
    errand(std::move(request), kLine);
    SayIdle(kLine);
  }
}

[[noreturn]] void SpawnForEver() {
  // They are asked of hoistd, which may need this process until it has stopped.
  for (const int signal_number : {SIGTERM, SIGINT, SIGHUP}) {
    signal(signal_number, SIG_IGN);
  }
  signal(SIGPIPE, SIG_IGN);
  prctl(PR_SET_NAME, "hoistd-errands");
  while (true) {
    hoist::Packet request = HearMore(kLine);
    if (request.fds.size() != 1) _exit(EXIT_FAILURE);
    // Not before: a pid that nobody has waited for names no other process, so
    // the pidfd below is the right one.
    while (waitpid(-1, nullptr, WNOHANG) > 0) {
    }
    const pid_t pid = fork();
    if (pid == 0) {
      KeepOnly(request.fds[0].release());
      RunErrands();
    }
    if (pid < 0) {
      Tell(kLine, ErrnoToStatus(errno, "fork a process for an errand"));
      continue;
    }
    request.fds.clear();
    const hoist::UniqueFd pidfd(
        static_cast<int>(syscall(SYS_pidfd_open, pid, 0)));
    const int fd = pidfd.get();
    Tell(kLine, absl::OkStatus(), {},
         {&fd, static_cast<size_t>(pidfd.valid() ? 1 : 0)});
  }
}

absl::StatusOr<std::pair<hoist::UniqueFd, hoist::UniqueFd>> MakeLine() {
  int ends[2];
  if (socketpair(AF_UNIX, SOCK_SEQPACKET | SOCK_CLOEXEC, 0, ends) != 0) {
    return ErrnoToStatus(errno, "make an errand's line");
  }
  return std::pair(hoist::UniqueFd(ends[0]), hoist::UniqueFd(ends[1]));
}

}  // namespace

absl::StatusOr<std::unique_ptr<ErrandSpawner>> ErrandSpawner::Start() {
  HOIST_ASSIGN_OR_RETURN(auto line, MakeLine());
  const pid_t pid = fork();
  if (pid < 0) return ErrnoToStatus(errno, "fork the errands' process");
  if (pid == 0) {
    KeepOnly(line.second.get());
    SpawnForEver();
  }
  return std::unique_ptr<ErrandSpawner>(
      new ErrandSpawner(std::move(line.first)));
}

absl::StatusOr<ErrandProcess> ErrandSpawner::Spawn() {
  HOIST_ASSIGN_OR_RETURN(auto line, MakeLine());
  const int theirs = line.second.get();
  absl::MutexLock lock(&mu_);
  if (const hoist::Status s = hoist::SendPacket(door_.get(), {}, {&theirs, 1});
      !s.ok()) {
    return ToAbsl(s);
  }
  HOIST_ASSIGN_OR_RETURN(auto packet,
                         ToAbsl(hoist::ReceivePacket(door_.get())));
  if (!packet.has_value()) {
    return absl::UnavailableError(
        "the process that makes processes for errands is gone; restart hoistd");
  }
  HOIST_RETURN_IF_ERROR(TakeAnswer(*packet));
  ErrandProcess process;
  process.line = std::move(line.first);
  if (!packet->fds.empty()) process.pidfd = std::move(packet->fds[0]);
  return process;
}

}  // namespace hoistd
