#include "daemon/session/peer_process.h"

#include <grp.h>
#include <sys/socket.h>
#include <sys/syscall.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <vector>

#include "absl/strings/str_cat.h"
#include "daemon/base/status.h"

// Linux 6.5; Debian 12's headers are older than the kernels it runs on.
#ifndef SO_PEERPIDFD
#define SO_PEERPIDFD 77
#endif

namespace hoistd {
namespace {

bool InGroup(int socket, const ucred& credentials, gid_t group) {
  if (credentials.gid == group) return true;
  std::vector<gid_t> groups(64);
  while (true) {
    auto bytes = static_cast<socklen_t>(groups.size() * sizeof(gid_t));
    if (getsockopt(socket, SOL_SOCKET, SO_PEERGROUPS, groups.data(), &bytes) ==
        0) {
      groups.resize(bytes / sizeof(gid_t));
      return std::find(groups.begin(), groups.end(), group) != groups.end();
    }
    // ERANGE: `bytes` now says how many there are.
    if (errno != ERANGE || bytes / sizeof(gid_t) <= groups.size()) return false;
    groups.resize(bytes / sizeof(gid_t));
  }
}

// SO_PEERPIDFD cannot be taken in by a reused pid; pidfd_open is for kernels
// that do not have it, where the gap between the two calls remains.
absl::StatusOr<hoist::UniqueFd> PidfdOf(int socket, pid_t pid) {
  int fd = -1;
  socklen_t bytes = sizeof(fd);
  if (getsockopt(socket, SOL_SOCKET, SO_PEERPIDFD, &fd, &bytes) == 0) {
    return hoist::UniqueFd(fd);
  }
  if (pid <= 0) return hoist::UniqueFd();
  // By number: glibc 2.36's declaration does not link from C++.
  hoist::UniqueFd opened(static_cast<int>(syscall(SYS_pidfd_open, pid, 0)));
  if (!opened.valid() && errno == ESRCH) {
    return absl::UnavailableError("the process that connected is dead");
  }
  return opened;
}

}  // namespace

absl::StatusOr<PeerProcess> PeerOf(int socket,
                                   std::optional<gid_t> admin_group) {
  ucred credentials = {};
  socklen_t bytes = sizeof(credentials);
  if (getsockopt(socket, SOL_SOCKET, SO_PEERCRED, &credentials, &bytes) != 0) {
    return ErrnoToStatus(errno, "ask who connected");
  }
  PeerProcess process;
  process.peer.uid = Uid(credentials.uid);
  process.peer.pid = credentials.pid;
  process.peer.via = "socket";
  process.peer.admin =
      credentials.uid == 0 || credentials.uid == geteuid() ||
      (admin_group.has_value() && InGroup(socket, credentials, *admin_group));
  HOIST_ASSIGN_OR_RETURN(process.pidfd, PidfdOf(socket, credentials.pid));
  return process;
}

absl::StatusOr<gid_t> GroupByName(const std::string& name) {
  std::vector<char> buffer(4096);
  while (true) {
    group entry;
    group* found = nullptr;
    const int error =
        getgrnam_r(name.c_str(), &entry, buffer.data(), buffer.size(), &found);
    if (error == ERANGE && buffer.size() < (1u << 24)) {
      buffer.resize(buffer.size() * 2);
      continue;
    }
    if (found != nullptr) return found->gr_gid;
    if (error != 0) return ErrnoToStatus(error, absl::StrCat("group ", name));
    return absl::NotFoundError(
        absl::StrCat("no group \"", name,
                     "\" on this host; make it with groupadd --system ", name));
  }
}

}  // namespace hoistd
