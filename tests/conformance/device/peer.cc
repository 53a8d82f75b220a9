#include "tests/conformance/device/peer.h"

#include <fcntl.h>
#include <spawn.h>
#include <sys/socket.h>
#include <sys/wait.h>
#include <unistd.h>

#include <cerrno>
#include <csignal>
#include <filesystem>
#include <utility>

#include "absl/memory/memory.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_split.h"
#include "daemon/base/status.h"

namespace hoistd::testing {

absl::StatusOr<std::unique_ptr<Peer>> Peer::Spawn() {
  std::error_code error;
  const std::filesystem::path self =
      std::filesystem::read_symlink("/proc/self/exe", error);
  if (error) return ErrnoToStatus(error.value(), "find this program");
  const std::string program = self.parent_path() / "device_conformance_peer";
  int ends[2];
  if (socketpair(AF_UNIX, SOCK_SEQPACKET | SOCK_CLOEXEC, 0, ends) != 0) {
    return ErrnoToStatus(errno, "socketpair");
  }
  hoist::UniqueFd ours(ends[0]);
  const hoist::UniqueFd theirs(ends[1]);
  // Without close-on-exec, for the one that the peer is told of.
  const hoist::UniqueFd passed(fcntl(theirs.get(), F_DUPFD, 100));
  if (!passed.valid()) return ErrnoToStatus(errno, "dup");
  std::string fd = absl::StrCat(passed.get());
  std::string name = program;
  char* arguments[] = {name.data(), fd.data(), nullptr};
  pid_t pid = 0;
  // Spawned, not forked: this process may use CUDA.
  if (const int e = posix_spawn(&pid, program.c_str(), nullptr, nullptr,
                                arguments, environ);
      e != 0) {
    return ErrnoToStatus(e, absl::StrCat("start ", program));
  }
  return absl::WrapUnique(new Peer(pid, std::move(ours)));
}

Peer::Peer(pid_t pid, hoist::UniqueFd socket)
    : pid_(pid), socket_(std::move(socket)) {}

Peer::~Peer() { Kill(); }

absl::StatusOr<hoist::Packet> Peer::Call(const std::string& command,
                                         std::vector<int> fds) {
  HOIST_RETURN_IF_ERROR(ToAbsl(hoist::SendPacket(socket_.get(), command, fds)));
  HOIST_ASSIGN_OR_RETURN(std::optional<hoist::Packet> answer,
                         ToAbsl(hoist::ReceivePacket(socket_.get())));
  if (!answer) {
    return absl::AbortedError(absl::StrCat("the peer died over: ", command));
  }
  if (answer->body.starts_with("ok ")) {
    answer->body.erase(0, 3);
    return *std::move(answer);
  }
  // "error <code> <message>".
  const std::vector<std::string> parts =
      absl::StrSplit(answer->body, absl::MaxSplits(' ', 2));
  if (parts.size() != 3) return absl::InternalError(answer->body);
  return absl::Status(static_cast<absl::StatusCode>(std::stoi(parts[1])),
                      parts[2]);
}

absl::StatusOr<std::vector<std::byte>> Peer::Read(uint64_t offset,
                                                  uint64_t bytes) {
  HOIST_ASSIGN_OR_RETURN(const hoist::Packet answer,
                         Call(absl::StrCat("read ", offset, " ", bytes)));
  const auto* data = reinterpret_cast<const std::byte*>(answer.body.data());
  return std::vector<std::byte>(data, data + answer.body.size());
}

void Peer::Kill() {
  if (pid_ < 0) return;
  kill(pid_, SIGKILL);
  DeathSignal();
}

int Peer::DeathSignal() {
  int status = 0;
  while (waitpid(pid_, &status, 0) < 0 && errno == EINTR) continue;
  pid_ = -1;
  return WIFSIGNALED(status) ? WTERMSIG(status) : 0;
}

}  // namespace hoistd::testing
