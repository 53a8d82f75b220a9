#include "daemon/io_helper/helper_spawner.h"

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

#include "daemon/base/start_thread.h"
#include "daemon/base/status.h"
#include "daemon/io_helper/helper_call.h"
#include "daemon/io_helper/helper_line.h"

namespace hoistd {
namespace {

constexpr int kLine = STDERR_FILENO + 1;

// Closes all of hoistd's descriptors: otherwise a client that waits for its
// connection's end would wait for a hanging call of this process.
void KeepOnly(int line) {
  const int null = open("/dev/null", O_RDWR);
  for (int fd = 0; fd < kLine; ++fd) dup2(null, fd);
  if (line != kLine) dup2(line, kLine);
  if (syscall(SYS_close_range, kLine + 1, ~0U, 0) == 0) return;
  for (int fd = kLine + 1; fd < sysconf(_SC_OPEN_MAX); ++fd) close(fd);
}

[[noreturn]] void ServeCalls() {
  while (true) {
    hoist::Packet request = HearMore(kLine);
    std::string_view body = request.body;
    HelperCall call = nullptr;
    if (!Unpack(body, call)) _exit(EXIT_FAILURE);
    request.body.erase(0, sizeof(call));
    call(std::move(request), kLine);
    SayIdle(kLine);
  }
}

[[noreturn]] void SpawnForEver() {
  // Stop signals stay blocked, as in hoistd, which needs this process until it
  // has stopped.
  prctl(PR_SET_NAME, "hoistd-helpers");
  while (true) {
    hoist::Packet request = HearMore(kLine);
    if (request.fds.size() != 1) _exit(EXIT_FAILURE);
    // The child is not reaped yet, so its pid is not reused, and the pidfd
    // below is the child's.
    while (waitpid(-1, nullptr, WNOHANG) > 0) {
    }
    const pid_t pid = fork();
    if (pid == 0) {
      KeepOnly(request.fds[0].release());
      ServeCalls();
    }
    if (pid < 0) {
      Tell(kLine, NoTask(errno, "fork an I/O helper"));
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
    return ErrnoToStatus(errno, "make an I/O helper's line");
  }
  return std::pair(hoist::UniqueFd(ends[0]), hoist::UniqueFd(ends[1]));
}

}  // namespace

absl::StatusOr<std::unique_ptr<HelperSpawner>> HelperSpawner::Start() {
  HOIST_ASSIGN_OR_RETURN(auto line, MakeLine());
  const pid_t pid = fork();
  if (pid < 0) return NoTask(errno, "fork the process that makes I/O helpers");
  if (pid == 0) {
    KeepOnly(line.second.get());
    SpawnForEver();
  }
  return std::unique_ptr<HelperSpawner>(
      new HelperSpawner(std::move(line.first)));
}

absl::StatusOr<HelperProcess> HelperSpawner::Spawn() {
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
        "the process that makes I/O helpers is gone; restart hoistd");
  }
  HOIST_RETURN_IF_ERROR(TakeAnswer(*packet));
  HelperProcess process;
  process.line = std::move(line.first);
  if (!packet->fds.empty()) process.pidfd = std::move(packet->fds[0]);
  return process;
}

}  // namespace hoistd
