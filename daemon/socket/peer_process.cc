#include "daemon/socket/peer_process.h"

#include <fcntl.h>
#include <grp.h>
#include <poll.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <string>
#include <vector>

#include "absl/strings/match.h"
#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_split.h"
#include "daemon/base/status.h"

// Since Linux 6.5; Debian 12's headers are older than the kernels it runs on.
#ifndef SO_PEERPIDFD
#define SO_PEERPIDFD 77
#endif

namespace hoistd {
namespace {

constexpr User kNobody = User(65534);

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
    // ERANGE: `bytes` now has the needed size.
    if (errno != ERANGE || bytes / sizeof(gid_t) <= groups.size()) return false;
    groups.resize(bytes / sizeof(gid_t));
  }
}

// A reused pid cannot deceive SO_PEERPIDFD. Kernels without it need pidfd_open,
// which leaves a race between the two calls.
absl::StatusOr<hoist::UniqueFd> PidfdOf(int socket, pid_t pid) {
  int fd = -1;
  socklen_t bytes = sizeof(fd);
  if (getsockopt(socket, SOL_SOCKET, SO_PEERPIDFD, &fd, &bytes) == 0) {
    return hoist::UniqueFd(fd);
  }
  if (OutOfFds(errno)) {
    return ErrnoToStatus(errno, "watch the process that connected");
  }
  if (pid <= 0) return hoist::UniqueFd();
  // By number: glibc 2.36's declaration does not link from C++.
  hoist::UniqueFd opened(static_cast<int>(syscall(SYS_pidfd_open, pid, 0)));
  if (!opened.valid() && errno == ESRCH) {
    return absl::UnavailableError("the process that connected is dead");
  }
  if (!opened.valid() && OutOfFds(errno)) {
    return ErrnoToStatus(errno, "watch the process that connected");
  }
  return opened;
}

// "": the file cannot be read. ResourceExhausted: no descriptor is free, which
// says nothing about the peer.
absl::StatusOr<std::string> Contents(const std::string& path) {
  const hoist::UniqueFd file(open(path.c_str(), O_RDONLY | O_CLOEXEC));
  if (!file.valid() && OutOfFds(errno)) {
    return ErrnoToStatus(errno, absl::StrCat("read ", path));
  }
  std::string text;
  char some[4096];
  ssize_t n = 0;
  while (file.valid() && (n = read(file.get(), some, sizeof(some))) > 0) {
    text.append(some, static_cast<size_t>(n));
  }
  return text;
}

// The number of pid namespaces that contain the process, from our /proc's down;
// 0: unknown.
absl::StatusOr<size_t> PidNamespacesOf(const std::string& proc) {
  HOIST_ASSIGN_OR_RETURN(const std::string status, Contents(proc + "/status"));
  for (const absl::string_view line : absl::StrSplit(status, '\n')) {
    if (!absl::StartsWith(line, "NSpid:")) continue;
    const std::vector<absl::string_view> words =
        absl::StrSplit(line, absl::ByAnyChar(" \t"), absl::SkipEmpty());
    return words.size() - 1;
  }
  return 0;
}

// The namespace's inode is exact, but readable only with the right to trace the
// process. Public files are almost as good: only a user namespace that root
// made with every uid in it looks like ours.
absl::StatusOr<bool> SharesNamespace(absl::string_view kind,
                                     const std::string& proc) {
  const std::string ns = absl::StrCat("/ns/", kind);
  struct stat ours, theirs;
  if (stat(absl::StrCat("/proc/self", ns).c_str(), &ours) != 0) return false;
  if (stat((proc + ns).c_str(), &theirs) == 0) {
    return ours.st_dev == theirs.st_dev && ours.st_ino == theirs.st_ino;
  }
  if (errno != EACCES && errno != EPERM) return false;
  if (kind == "pid") {
    HOIST_ASSIGN_OR_RETURN(const size_t depth, PidNamespacesOf(proc));
    HOIST_ASSIGN_OR_RETURN(const size_t own, PidNamespacesOf("/proc/self"));
    return depth > 0 && depth == own;
  }
  HOIST_ASSIGN_OR_RETURN(const std::string map, Contents(proc + "/uid_map"));
  HOIST_ASSIGN_OR_RETURN(const std::string own, Contents("/proc/self/uid_map"));
  return !map.empty() && map == own;
}

absl::StatusOr<bool> SharesOurNamespaces(pid_t pid, int pidfd) {
  if (pid <= 0) return false;  // It is in no pid namespace that we see.
  const std::string proc = absl::StrCat("/proc/", pid);
  HOIST_ASSIGN_OR_RETURN(const bool user, SharesNamespace("user", proc));
  if (!user) return false;
  HOIST_ASSIGN_OR_RETURN(const bool pids, SharesNamespace("pid", proc));
  if (!pids) return false;
  // If the process is still alive, its pid was not reused during the checks.
  pollfd alive = {pidfd, POLLIN, 0};
  return pidfd < 0 || poll(&alive, 1, 0) == 0;
}

// The kernel's initial user namespace maps every uid.
bool MapsEveryUid(const std::string& uid_map) {
  uint64_t count = 0;
  for (const absl::string_view line : absl::StrSplit(uid_map, '\n')) {
    const std::vector<absl::string_view> words =
        absl::StrSplit(line, ' ', absl::SkipEmpty());
    uint64_t length = 0;
    if (words.size() == 3 && absl::SimpleAtoi(words[2], &length)) {
      count += length;
    }
  }
  return count >= UINT32_MAX;
}

// A uid without a mapping here is shown as the overflow uid.
absl::Status CheckMapped(uid_t uid) {
  HOIST_ASSIGN_OR_RETURN(const std::string text,
                         Contents("/proc/sys/kernel/overflowuid"));
  uint32_t overflow = 0;
  if (!absl::SimpleAtoi(text, &overflow)) overflow = 65534;
  if (uid != overflow) return absl::OkStatus();
  HOIST_ASSIGN_OR_RETURN(const std::string map, Contents("/proc/self/uid_map"));
  if (MapsEveryUid(map)) return absl::OkStatus();
  return absl::PermissionDeniedError(absl::StrCat(
      "your uid has no number in hoistd's user namespace, which shows all such "
      "users as uid ",
      overflow, "; run hoistd outside, or map your uid into its container"));
}

}  // namespace

absl::StatusOr<PeerProcess> PeerOf(int socket, std::optional<gid_t> admin_group,
                                   const std::optional<User>& tenant) {
  ucred credentials = {};
  socklen_t bytes = sizeof(credentials);
  if (getsockopt(socket, SOL_SOCKET, SO_PEERCRED, &credentials, &bytes) != 0) {
    return ErrnoToStatus(errno, "ask who connected");
  }
  if (!tenant.has_value()) {
    HOIST_RETURN_IF_ERROR(CheckMapped(credentials.uid));
  }
  PeerProcess process;
  process.peer.uid = tenant.value_or(User(credentials.uid));
  process.peer.pid = credentials.pid;
  process.peer.via = "socket";
  HOIST_ASSIGN_OR_RETURN(process.pidfd, PidfdOf(socket, credentials.pid));
  if (tenant.has_value()) return process;
  const bool entitled =
      credentials.uid == 0 || credentials.uid == geteuid() ||
      (admin_group.has_value() && InGroup(socket, credentials, *admin_group));
  if (entitled) {
    HOIST_ASSIGN_OR_RETURN(
        process.peer.admin,
        SharesOurNamespaces(credentials.pid, process.pidfd.get()));
    process.peer.apart = !process.peer.admin;
  }
  // A container's root is not the host's root, whose models everyone trusts.
  if (credentials.uid == 0 && !process.peer.admin) process.peer.uid = kNobody;
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
