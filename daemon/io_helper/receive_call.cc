#include "daemon/io_helper/receive_call.h"

#include <fcntl.h>
#include <sys/eventfd.h>
#include <sys/socket.h>
#include <sys/stat.h>

#include <cerrno>
#include <string>
#include <utility>
#include <vector>

#include "daemon/base/status.h"
#include "daemon/io_helper/helper_call.h"
#include "daemon/io_helper/parked_file.h"

namespace hoistd {
namespace {

// For a packet: its descriptors come in order, the sealed body's last.
struct Shape {
  bool received = false;
  bool sealed = false;
  uint64_t sealed_bytes = 0;
};

// The descriptor that hoistd gets for `fd`. Calls no file system: seals are a
// memfd's own, and DONT_SYNC takes the type from the kernel's cache.
absl::StatusOr<hoist::UniqueFd> ForHoistd(int fd) {
  if (fcntl(fd, F_GET_SEALS) >= 0) {
    hoist::UniqueFd same(fcntl(fd, F_DUPFD_CLOEXEC, 0));
    if (!same.valid()) return ErrnoToStatus(errno, "take a descriptor");
    return same;
  }
  struct statx known = {};
  const int asked =
      statx(fd, "", AT_EMPTY_PATH | AT_STATX_DONT_SYNC, STATX_TYPE, &known);
  // FUSE refuses stat to users other than the mounter.
  if (asked != 0 || S_ISREG(known.stx_mode)) return Park(fd);
  hoist::UniqueFd no_file(eventfd(0, EFD_CLOEXEC));
  if (!no_file.valid()) return ErrnoToStatus(errno, "take a descriptor");
  return no_file;
}

void Receive(hoist::Packet request, int line) {
  uint64_t max_body = 0;
  std::string_view asked = request.body;
  Unpack(asked, max_body);
  bool would_block = false;
  hoist::Result<std::optional<hoist::Packet>> received = hoist::ReceivePacket(
      request.fds.at(0).get(), &would_block,
      {.max_body = max_body, .leave_sealed = true, .as_hoistd = true});
  // Otherwise a hang of this process would keep the client's connection open.
  request.fds.clear();
  if (!received.ok()) return Tell(line, ToAbsl(received.status()));
  std::optional<hoist::Packet> packet = std::move(received).value();
  if (!packet.has_value() && !would_block) {
    return Tell(line, absl::CancelledError("the client closed the connection"));
  }
  Shape shape;
  shape.received = packet.has_value();
  std::vector<hoist::UniqueFd> ours;
  std::vector<int> fds;
  if (packet.has_value()) {
    for (const hoist::UniqueFd& fd : packet->fds) {
      absl::StatusOr<hoist::UniqueFd> kept = ForHoistd(fd.get());
      if (!kept.ok()) return Tell(line, kept.status());
      fds.push_back(kept->get());
      ours.push_back(*std::move(kept));
    }
    if (packet->sealed.has_value()) {
      shape.sealed = true;
      shape.sealed_bytes = packet->sealed->bytes;
      fds.push_back(packet->sealed->memfd.get());
    }
  }
  std::string body;
  Pack(shape, body);
  if (packet.has_value()) body.append(packet->body);
  Tell(line, absl::OkStatus(), body, fds);
  // Closes the client's descriptors, which may hang.
}

void Drop(hoist::Packet request, int line) {
  const int socket = request.fds.at(0).get();
  shutdown(socket, SHUT_RDWR);
  char byte;
  while (recv(socket, &byte, 1, MSG_DONTWAIT) > 0) {
  }
  Tell(line, absl::OkStatus());
}

}  // namespace

absl::Status DropByHelper(IoHelper& run, int socket) {
  return run
      .Call(&Drop, "descriptors that were not asked for", "", {&socket, 1})
      .status();
}

absl::StatusOr<std::optional<hoist::Packet>> ReceiveByHelper(
    IoHelper& run, int socket, uint64_t max_body) {
  std::string request;
  Pack(max_body, request);
  HOIST_ASSIGN_OR_RETURN(
      hoist::Packet answer,
      run.Call(&Receive, "descriptors of a request", request, {&socket, 1}));
  Shape shape;
  std::string_view rest = answer.body;
  if (!Unpack(rest, shape) || (shape.sealed && answer.fds.empty())) {
    return absl::InternalError("the helper's packet is malformed");
  }
  if (!shape.received) return std::optional<hoist::Packet>();
  hoist::Packet packet;
  if (shape.sealed) {
    packet.sealed = {std::move(answer.fds.back()), shape.sealed_bytes};
    answer.fds.pop_back();
  }
  packet.body = std::string(rest);
  packet.fds = std::move(answer.fds);
  return std::optional<hoist::Packet>(std::move(packet));
}

}  // namespace hoistd
