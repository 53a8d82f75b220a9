#ifndef HOIST_DAEMON_SOCKET_LISTENING_SOCKET_H_
#define HOIST_DAEMON_SOCKET_LISTENING_SOCKET_H_

#include <sys/socket.h>
#include <sys/types.h>

#include <optional>
#include <string>

#include "absl/status/statusor.h"
#include "hoist/shared/unique_fd.h"

namespace hoistd {

struct SocketFileOptions {
  std::string path;
  mode_t mode = 0660;
  std::optional<gid_t> group;
  int type = SOCK_SEQPACKET;  // SOCK_STREAM: gRPC's.
};

// A socket for clients, the session's or gRPC's; non-blocking.
//
// Two daemons cannot serve one path: this object holds a lock on `<path>.lock`.
// That file is never removed, since a removal would race.
//
// Owns:     the descriptor and, if Create made it, the socket file. Its end
//           removes the file, unless another one has taken its place.
// Restart:  replaces the socket file of a daemon that died.
class ListeningSocket {
 public:
  // FailedPrecondition: another hoistd serves the path, or the file there is
  // not a socket. InvalidArgument: the path is too long.
  static absl::StatusOr<ListeningSocket> Create(SocketFileOptions options);
  // Takes over a listening unix SOCK_SEQPACKET socket that another program
  // made, such as systemd. Its file stays.
  static absl::StatusOr<ListeningSocket> Adopt(hoist::UniqueFd fd);

  ListeningSocket(ListeningSocket&&) = default;
  ListeningSocket& operator=(ListeningSocket&&) = delete;
  ~ListeningSocket();

  int get() const { return fd_.get(); }

 private:
  explicit ListeningSocket(hoist::UniqueFd fd) : fd_(std::move(fd)) {}

  hoist::UniqueFd fd_;
  hoist::UniqueFd lock_;
  std::string path_;  // Empty: the file is not ours.
  dev_t device_ = 0;
  ino_t inode_ = 0;
};

}  // namespace hoistd

#endif  // HOIST_DAEMON_SOCKET_LISTENING_SOCKET_H_
