// A client of the session socket that sends exactly what a test wants, invalid
// messages included.
#ifndef HOIST_TESTS_SUPPORT_RAW_SESSION_H_
#define HOIST_TESTS_SUPPORT_RAW_SESSION_H_

#include <fcntl.h>
#include <poll.h>
#include <sys/socket.h>
#include <sys/un.h>

#include <cstring>
#include <filesystem>
#include <iterator>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "daemon/base/check.h"
#include "hoist/shared/packet_socket.h"
#include "hoist/shared/unique_fd.h"
#include "hoist/shared/wire.h"
#include "hoist/v1/session.pb.h"

namespace hoistd::testing {

// The number of this process's open descriptors.
inline size_t OpenFdCount() {
  using Iterator = std::filesystem::directory_iterator;
  return static_cast<size_t>(
      std::distance(Iterator("/proc/self/fd"), Iterator()));
}

class RawSession {
 public:
  struct Answer {
    hoist::v1::DaemonMessage message;
    std::vector<hoist::UniqueFd> fds;
  };

  // Invalid, with errno set, if `path` is not served.
  explicit RawSession(const std::string& path)
      : socket_(::socket(AF_UNIX, SOCK_SEQPACKET | SOCK_CLOEXEC, 0)) {
    sockaddr_un address = {};
    address.sun_family = AF_UNIX;
    HOIST_CHECK(path.size() < sizeof(address.sun_path));
    std::memcpy(address.sun_path, path.data(), path.size());
    if (connect(socket_.get(), reinterpret_cast<sockaddr*>(&address),
                sizeof(address)) != 0) {
      socket_.reset();
    }
  }

  bool valid() const { return socket_.valid(); }
  int socket() const { return socket_.get(); }
  void Close() { socket_.reset(); }
  // Waits until the socket is writable or the daemon has hung up. True: it has.
  bool DaemonHungUp() const {
    pollfd ready = {socket_.get(), POLLOUT | POLLRDHUP, 0};
    poll(&ready, 1, -1);
    return (ready.revents & POLLRDHUP) != 0;
  }
  // Waits for the daemon to hang up.
  void WaitUntilDaemonHangsUp() const {
    pollfd gone = {socket_.get(), POLLRDHUP, 0};
    poll(&gone, 1, -1);
  }

  // False: the daemon hung up.
  bool Send(const hoist::v1::ClientMessage& message,
            std::span<const int> fds = {}) {
    return SendBody(message.SerializeAsString(), fds);
  }
  // Well framed, with any body.
  bool SendBody(std::string_view body, std::span<const int> fds = {}) {
    return hoist::SendPacket(socket_.get(), body, fds).ok();
  }
  // A raw packet, frame included.
  bool SendPacketBytes(std::string_view bytes, std::span<const int> fds = {}) {
    iovec part = {const_cast<char*>(bytes.data()), bytes.size()};
    alignas(cmsghdr) char control[CMSG_SPACE(253 * sizeof(int))] = {};
    msghdr header = {};
    header.msg_iov = &part;
    header.msg_iovlen = 1;
    if (!fds.empty()) {
      header.msg_control = control;
      header.msg_controllen = CMSG_SPACE(fds.size_bytes());
      cmsghdr* c = CMSG_FIRSTHDR(&header);
      c->cmsg_level = SOL_SOCKET;
      c->cmsg_type = SCM_RIGHTS;
      c->cmsg_len = CMSG_LEN(fds.size_bytes());
      std::memcpy(CMSG_DATA(c), fds.data(), fds.size_bytes());
    }
    return sendmsg(socket_.get(), &header, MSG_NOSIGNAL) >= 0;
  }

  // Waits for a message. nullopt: the daemon hung up.
  std::optional<Answer> Receive() {
    hoist::Result<std::optional<hoist::Packet>> packet =
        hoist::ReceivePacket(socket_.get());
    if (!packet.ok() || !packet->has_value()) return std::nullopt;
    return Parse(std::move(**packet));
  }
  // Discards received bytes, without a wait.
  void Drain() {
    char byte;
    while (recv(socket_.get(), &byte, 1, MSG_DONTWAIT) > 0) {
    }
  }

  // Sends and waits for the reply, which must come.
  Answer Call(const hoist::v1::ClientMessage& message,
              std::span<const int> fds = {}) {
    HOIST_CHECK(Send(message, fds));
    std::optional<Answer> answer = Receive();
    HOIST_CHECK(answer.has_value());
    return *std::move(answer);
  }
  Answer Open(const std::string& client_name = "test") {
    hoist::v1::ClientMessage message;
    message.set_request_id(1);
    message.mutable_open_session()->set_client_name(client_name);
    return Call(message);
  }

 private:
  static Answer Parse(hoist::Packet packet) {
    Answer answer;
    HOIST_CHECK(answer.message.ParseFromString(packet.body));
    answer.fds = std::move(packet.fds);
    return answer;
  }

  hoist::UniqueFd socket_;
};

}  // namespace hoistd::testing

#endif  // HOIST_TESTS_SUPPORT_RAW_SESSION_H_
