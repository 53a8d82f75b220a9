#include "daemon/socket/listening_socket.h"

#include <fcntl.h>
#include <sys/file.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <sys/un.h>
#include <unistd.h>

#include <cerrno>
#include <cstring>
#include <utility>

#include "absl/strings/str_cat.h"
#include "daemon/base/status.h"

namespace hoistd {
namespace {

absl::Status Taken(const std::string& path) {
  return absl::FailedPreconditionError(absl::StrCat(
      "another hoistd serves ", path, "; stop it, or choose another path"));
}

absl::StatusOr<sockaddr_un> AddressOf(const std::string& path) {
  sockaddr_un address = {};
  address.sun_family = AF_UNIX;
  if (path.empty() || path.size() >= sizeof(address.sun_path) ||
      path.find('\0') != std::string::npos) {
    return absl::InvalidArgumentError(absl::StrCat(
        "socket path \"", path, "\" must have 1 to ",
        sizeof(address.sun_path) - 1, " bytes, as the kernel allows"));
  }
  std::memcpy(address.sun_path, path.data(), path.size());
  return address;
}

absl::StatusOr<hoist::UniqueFd> Lock(const std::string& path) {
  const std::string file = path + ".lock";
  hoist::UniqueFd fd(
      open(file.c_str(), O_RDWR | O_CREAT | O_CLOEXEC | O_NOFOLLOW, 0600));
  if (!fd.valid()) return ErrnoToStatus(errno, "open " + file);
  if (flock(fd.get(), LOCK_EX | LOCK_NB) != 0) {
    if (errno == EWOULDBLOCK) return Taken(path);
    return ErrnoToStatus(errno, "lock " + file);
  }
  return fd;
}

absl::StatusOr<hoist::UniqueFd> NewSocket(int type) {
  hoist::UniqueFd fd(socket(AF_UNIX, type | SOCK_CLOEXEC | SOCK_NONBLOCK, 0));
  if (!fd.valid()) return ErrnoToStatus(errno, "make a socket");
  return fd;
}

// Removes a dead daemon's socket; refuses to replace a live one's, even one
// without our lock (systemd made its socket).
absl::Status RemoveStale(const std::string& path, const sockaddr_un& address,
                         int type) {
  struct stat info;
  if (lstat(path.c_str(), &info) != 0) {
    if (errno == ENOENT) return absl::OkStatus();
    return ErrnoToStatus(errno, "look at " + path);
  }
  if (!S_ISSOCK(info.st_mode)) {
    return absl::FailedPreconditionError(absl::StrCat(
        path,
        " exists and is not a socket; remove it, or choose another path"));
  }
  HOIST_ASSIGN_OR_RETURN(const hoist::UniqueFd probe, NewSocket(type));
  if (connect(probe.get(), reinterpret_cast<const sockaddr*>(&address),
              sizeof(address)) == 0 ||
      errno != ECONNREFUSED) {
    // EAGAIN: its backlog is full. EPROTOTYPE: it is served with another type.
    return Taken(path);
  }
  if (unlink(path.c_str()) != 0 && errno != ENOENT) {
    return ErrnoToStatus(errno, "remove the stale " + path);
  }
  return absl::OkStatus();
}

// Before listen() connections are refused, so no client gets in under the
// umask's mode.
absl::Status Protect(const SocketFileOptions& options) {
  const char* path = options.path.c_str();
  if (options.group.has_value() &&
      lchown(path, static_cast<uid_t>(-1), *options.group) != 0) {
    return ErrnoToStatus(
        errno, absl::StrCat("give ", path, " to group ", *options.group));
  }
  if (chmod(path, options.mode) != 0) {
    return ErrnoToStatus(errno, absl::StrCat("set the mode of ", path));
  }
  return absl::OkStatus();
}

int IntOption(int fd, int option) {
  int value = 0;
  socklen_t bytes = sizeof(value);
  if (getsockopt(fd, SOL_SOCKET, option, &value, &bytes) != 0) return -1;
  return value;
}

}  // namespace

absl::StatusOr<ListeningSocket> ListeningSocket::Create(
    SocketFileOptions options) {
  HOIST_ASSIGN_OR_RETURN(const sockaddr_un address, AddressOf(options.path));
  HOIST_ASSIGN_OR_RETURN(hoist::UniqueFd lock, Lock(options.path));
  HOIST_RETURN_IF_ERROR(RemoveStale(options.path, address, options.type));
  HOIST_ASSIGN_OR_RETURN(hoist::UniqueFd fd, NewSocket(options.type));
  if (bind(fd.get(), reinterpret_cast<const sockaddr*>(&address),
           sizeof(address)) != 0) {
    return ErrnoToStatus(errno, "bind " + options.path);
  }
  ListeningSocket made(std::move(fd));
  struct stat info;
  if (lstat(options.path.c_str(), &info) != 0) {
    return ErrnoToStatus(errno, "look at " + options.path);
  }
  made.lock_ = std::move(lock);
  made.device_ = info.st_dev;
  made.inode_ = info.st_ino;
  made.path_ = options.path;
  HOIST_RETURN_IF_ERROR(Protect(options));
  if (listen(made.get(), SOMAXCONN) != 0) {
    return ErrnoToStatus(errno, "listen on " + options.path);
  }
  return made;
}

absl::StatusOr<ListeningSocket> ListeningSocket::Adopt(hoist::UniqueFd fd) {
  if (IntOption(fd.get(), SO_DOMAIN) != AF_UNIX ||
      IntOption(fd.get(), SO_TYPE) != SOCK_SEQPACKET ||
      IntOption(fd.get(), SO_ACCEPTCONN) != 1) {
    return absl::InvalidArgumentError(
        "the session socket that was passed in must be a listening unix socket "
        "of packets; systemd: ListenSequentialPacket=");
  }
  const int flags = fcntl(fd.get(), F_GETFL);
  if (flags < 0 || fcntl(fd.get(), F_SETFL, flags | O_NONBLOCK) != 0 ||
      fcntl(fd.get(), F_SETFD, FD_CLOEXEC) != 0) {
    return ErrnoToStatus(errno, "set up the session socket");
  }
  return ListeningSocket(std::move(fd));
}

ListeningSocket::~ListeningSocket() {
  if (path_.empty()) return;
  struct stat info;
  if (lstat(path_.c_str(), &info) == 0 && info.st_dev == device_ &&
      info.st_ino == inode_) {
    unlink(path_.c_str());
  }
}

}  // namespace hoistd
