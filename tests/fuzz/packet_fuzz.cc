// The session socket's framing: a packet of any bytes, with descriptors, as
// ReceivePacket takes it.
#include <fcntl.h>
#include <sys/mman.h>
#include <sys/socket.h>
#include <unistd.h>

#include <cerrno>

#include "hoist/shared/packet_socket.h"
#include "tests/fuzz/fuzz.h"

namespace hoist {
namespace {

constexpr uint64_t kMemfdBytes = 100;

// A memfd of a body: with all seals, one missing, or none.
UniqueFd NewBody(int kind) {
  UniqueFd fd(memfd_create("fuzz", MFD_CLOEXEC | MFD_ALLOW_SEALING));
  const std::string body(kMemfdBytes, 'b');
  FUZZ_REQUIRE(write(fd.get(), body.data(), body.size()) ==
               static_cast<ssize_t>(body.size()));
  if (kind == 0) FUZZ_REQUIRE(SealMemfd(fd.get()).ok());
  if (kind == 1) {
    FUZZ_REQUIRE(fcntl(fd.get(), F_ADD_SEALS, F_SEAL_SHRINK | F_SEAL_GROW) ==
                 0);
  }
  return fd;
}

// False: the kernel takes no such packet.
bool SendRaw(int socket, std::string_view bytes, const std::vector<int>& fds) {
  iovec part = {const_cast<char*>(bytes.data()), bytes.size()};
  alignas(cmsghdr) char control[CMSG_SPACE(8 * sizeof(int))] = {};
  msghdr header = {};
  header.msg_iov = &part;
  header.msg_iovlen = 1;
  if (!fds.empty()) {
    header.msg_control = control;
    header.msg_controllen = CMSG_SPACE(fds.size() * sizeof(int));
    cmsghdr* rights = CMSG_FIRSTHDR(&header);
    rights->cmsg_level = SOL_SOCKET;
    rights->cmsg_type = SCM_RIGHTS;
    rights->cmsg_len = CMSG_LEN(fds.size() * sizeof(int));
    std::memcpy(CMSG_DATA(rights), fds.data(), fds.size() * sizeof(int));
  }
  return sendmsg(socket, &header, MSG_NOSIGNAL) >= 0;
}

struct Sockets {
  UniqueFd near, far;

  Sockets() {
    int ends[2];
    FUZZ_REQUIRE(socketpair(AF_UNIX,
                            SOCK_SEQPACKET | SOCK_CLOEXEC | SOCK_NONBLOCK, 0,
                            ends) == 0);
    near = UniqueFd(ends[0]);
    far = UniqueFd(ends[1]);
  }
};

// How many more than this one are open, cheaply: the next number.
int NextFd() {
  const UniqueFd fd(fcntl(0, F_DUPFD_CLOEXEC, 0));
  return fd.get();
}

void RequireSound(const Packet& packet, std::string_view sent, size_t fds,
                  const ReceiveOptions& options) {
  FrameHeader header;
  FUZZ_REQUIRE(sent.size() >= sizeof(header));
  std::memcpy(&header, sent.data(), sizeof(header));
  FUZZ_REQUIRE(header.magic == kFrameMagic);
  FUZZ_REQUIRE(header.version == kProtocolVersion);
  FUZZ_REQUIRE(header.body_bytes <= options.max_body);
  for (const UniqueFd& fd : packet.fds) FUZZ_REQUIRE(fd.valid());
  if (header.flags == 0) {
    FUZZ_REQUIRE(packet.fds.size() == fds && !packet.sealed.has_value());
    FUZZ_REQUIRE(packet.body == sent.substr(sizeof(header)));
    return;
  }
  FUZZ_REQUIRE(header.flags == kBodyInMemfd);
  FUZZ_REQUIRE(packet.fds.size() + 1 == fds);
  FUZZ_REQUIRE(packet.sealed.has_value() == options.leave_sealed);
  const std::string body = packet.sealed.has_value()
                               ? ReadSealedBody(*packet.sealed).value()
                               : packet.body;
  FUZZ_REQUIRE(body == std::string(kMemfdBytes, 'b'));
}

void Try(const Sockets& sockets, std::string_view bytes,
         const std::vector<int>& fds, bool leave_sealed) {
  const int next = NextFd();
  ReceiveOptions options;
  options.max_body = 4096;
  options.leave_sealed = leave_sealed;
  if (!SendRaw(sockets.far.get(), bytes, fds)) return;
  {
    bool would_block = false;
    auto packet = ReceivePacket(sockets.near.get(), &would_block, options);
    FUZZ_REQUIRE(!would_block);
    if (packet.ok() && packet->has_value()) {
      RequireSound(**packet, bytes, fds.size(), options);
    } else if (!packet.ok()) {
      FUZZ_REQUIRE(packet.status().code() == Code::kInvalidArgument ||
                   packet.status().code() == Code::kFailedPrecondition);
    } else {
      FUZZ_REQUIRE(bytes.empty());
    }
  }
  // Every descriptor that came is closed again.
  FUZZ_REQUIRE(NextFd() == next);
}

std::string InputOf(int fds, uint16_t flags, std::string_view body,
                    uint64_t body_bytes) {
  return hoistd::fuzz::Output()
      .Put(static_cast<uint8_t>(fds))
      .Put(kFrameMagic)
      .Put(static_cast<uint16_t>(kProtocolVersion))
      .Put(flags)
      .Put(body_bytes)
      .Bytes(body)
      .str();
}

}  // namespace
}  // namespace hoist

namespace hoistd::fuzz {

Seeds MakeSeeds() {
  using hoist::InputOf;
  return {{"inline", InputOf(0, 0, "body", 4)},
          {"with_fds", InputOf(0x12, 0, "body", 4)},
          {"memfd", InputOf(0x01, hoist::kBodyInMemfd, "", 100)},
          {"memfd_left", InputOf(0x81, hoist::kBodyInMemfd, "", 100)},
          {"loose", InputOf(0x21, hoist::kBodyInMemfd, "", 100)}};
}

}  // namespace hoistd::fuzz

// u8: descriptors in the lowest two bits, the kind of the last in bits 4 and 5,
// bit 7 to leave a body in its memfd; then the packet.
extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  static const hoist::Sockets* const sockets = new hoist::Sockets;
  static const hoist::UniqueFd* const bodies = new hoist::UniqueFd[3]{
      hoist::NewBody(0), hoist::NewBody(1), hoist::NewBody(2)};
  hoistd::fuzz::Input input(data, size);
  const uint8_t how = input.Take();
  std::vector<int> fds(how & 3, bodies[2].get());
  const int kind = (how >> 4) & 3;
  if (!fds.empty()) fds.back() = bodies[kind == 3 ? 2 : kind].get();
  hoist::Try(*sockets, input.Rest(), fds, (how & 0x80) != 0);
  return 0;
}
