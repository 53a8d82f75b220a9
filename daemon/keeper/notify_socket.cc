#include "daemon/keeper/notify_socket.h"

#include <fcntl.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <sys/un.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstring>
#include <string_view>
#include <utility>

#include "absl/strings/str_cat.h"
#include "daemon/base/status.h"

namespace hoistd {
namespace {

constexpr size_t kMostBytes = 4096;

bool SameFile(int a, int b) {
  struct stat one, other;
  return fstat(a, &one) == 0 && fstat(b, &other) == 0 &&
         one.st_dev == other.st_dev && one.st_ino == other.st_ino;
}

std::map<std::string, std::string> ValuesOf(std::string_view text) {
  std::map<std::string, std::string> values;
  while (!text.empty()) {
    const std::string_view line = text.substr(0, text.find('\n'));
    text.remove_prefix(std::min(text.size(), line.size() + 1));
    const size_t equals = line.find('=');
    if (equals == std::string_view::npos) continue;
    values[std::string(line.substr(0, equals))] = line.substr(equals + 1);
  }
  return values;
}

}  // namespace

absl::StatusOr<NotifySocket> NotifySocket::Listen(const std::string& path) {
  sockaddr_un address = {};
  address.sun_family = AF_UNIX;
  if (path.size() >= sizeof(address.sun_path)) {
    return absl::InvalidArgumentError(absl::StrCat(
        path, " is too long for a socket: ", sizeof(address.sun_path) - 1,
        " bytes at most"));
  }
  std::memcpy(address.sun_path, path.data(), path.size());
  hoist::UniqueFd fd(
      socket(AF_UNIX, SOCK_DGRAM | SOCK_CLOEXEC | SOCK_NONBLOCK, 0));
  if (!fd.valid()) return ErrnoToStatus(errno, "make a socket");
  unlink(path.c_str());
  const mode_t mask = umask(0077);
  const int bound =
      bind(fd.get(), reinterpret_cast<sockaddr*>(&address), sizeof(address));
  umask(mask);
  if (bound != 0) return ErrnoToStatus(errno, path);
  const int on = 1;
  if (setsockopt(fd.get(), SOL_SOCKET, SO_PASSCRED, &on, sizeof(on)) != 0) {
    return ErrnoToStatus(errno, path);
  }
  return NotifySocket(std::move(fd));
}

std::optional<Notice> NotifySocket::Receive() {
  char text[kMostBytes];
  iovec part = {text, sizeof(text)};
  alignas(cmsghdr) char
      control[CMSG_SPACE(sizeof(ucred)) + CMSG_SPACE(kMostFds * sizeof(int))];
  msghdr header = {};
  header.msg_iov = &part;
  header.msg_iovlen = 1;
  header.msg_control = control;
  header.msg_controllen = sizeof(control);
  const ssize_t got = recvmsg(fd_.get(), &header, MSG_CMSG_CLOEXEC);
  if (got < 0) return std::nullopt;
  Notice notice;
  for (cmsghdr* one = CMSG_FIRSTHDR(&header); one != nullptr;
       one = CMSG_NXTHDR(&header, one)) {
    if (one->cmsg_level != SOL_SOCKET) continue;
    if (one->cmsg_type == SCM_CREDENTIALS) {
      ucred who;
      std::memcpy(&who, CMSG_DATA(one), sizeof(who));
      notice.sender = who.pid;
      notice.uid = who.uid;
    } else if (one->cmsg_type == SCM_RIGHTS) {
      const size_t count = (one->cmsg_len - CMSG_LEN(0)) / sizeof(int);
      for (size_t i = 0; i < count; ++i) {
        int fd;
        std::memcpy(&fd, CMSG_DATA(one) + i * sizeof(int), sizeof(fd));
        notice.fds.emplace_back(fd);
      }
    }
  }
  if ((header.msg_flags & MSG_TRUNC) == 0) {
    notice.values = ValuesOf({text, static_cast<size_t>(got)});
  }
  return notice;
}

void FdShelf::Take(Notice& notice) {
  const std::string& name = notice.values["FDNAME"];
  if (notice.values["FDSTOREREMOVE"] == "1") {
    std::erase_if(held_, [&](const Held& one) { return one.name == name; });
  }
  if (notice.values["FDSTORE"] != "1") return;
  for (hoist::UniqueFd& fd : notice.fds) {
    const bool known =
        std::any_of(held_.begin(), held_.end(), [&](const Held& one) {
          return one.name == name && SameFile(one.fd.get(), fd.get());
        });
    if (!known) Add(name.empty() ? "stored" : name, std::move(fd));
  }
}

}  // namespace hoistd
