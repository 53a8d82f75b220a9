// The receiving side of sd_notify(3): what a service tells who supervises it.
#ifndef HOIST_DAEMON_KEEPER_NOTIFY_SOCKET_H_
#define HOIST_DAEMON_KEEPER_NOTIFY_SOCKET_H_

#include <sys/types.h>

#include <map>
#include <optional>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "hoist/shared/unique_fd.h"

namespace hoistd {

struct Notice {
  pid_t sender = 0;  // As the kernel says.
  uid_t uid = 0;
  std::map<std::string, std::string> values;  // "READY" is "1", ...
  std::vector<hoist::UniqueFd> fds;
};

// Threads: one.
// Owns:    the socket; its path is taken from whoever left it there.
class NotifySocket {
 public:
  static constexpr size_t kMostFds = 253;  // Of a message: the kernel's bound.

  static absl::StatusOr<NotifySocket> Listen(const std::string& path);

  int fd() const { return fd_.get(); }
  // Does not block. nullopt: there is none, or one that is none.
  std::optional<Notice> Receive();

 private:
  explicit NotifySocket(hoist::UniqueFd fd) : fd_(std::move(fd)) {}

  hoist::UniqueFd fd_;
};

// Descriptors by name, in the order in which they came (systemd's store).
class FdShelf {
 public:
  struct Held {
    std::string name;
    hoist::UniqueFd fd;
  };

  // FDSTORE=1 and FDSTOREREMOVE=1; of anything else nothing happens.
  void Take(Notice& notice);
  void Add(std::string name, hoist::UniqueFd fd) {
    held_.push_back({std::move(name), std::move(fd)});
  }
  const std::vector<Held>& held() const { return held_; }

 private:
  std::vector<Held> held_;
};

}  // namespace hoistd

#endif  // HOIST_DAEMON_KEEPER_NOTIFY_SOCKET_H_
