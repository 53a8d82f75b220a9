#include "hoist/shared/packet_socket.h"

#include <fcntl.h>
#include <sys/mman.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <sys/uio.h>

#include <cerrno>
#include <cstring>

#include "hoist/shared/wire.h"

namespace hoist {
namespace {

constexpr int kSeals = F_SEAL_SHRINK | F_SEAL_GROW | F_SEAL_WRITE;

Status WriteAll(int fd, std::string_view bytes) {
  size_t done = 0;
  while (done < bytes.size()) {
    const ssize_t n = pwrite(fd, bytes.data() + done, bytes.size() - done,
                             static_cast<off_t>(done));
    if (n < 0 && errno == EINTR) continue;
    if (n < 0) return ErrnoStatus(errno, "write message to memfd");
    done += static_cast<size_t>(n);
  }
  return Status();
}

// The peer can no longer change the memfd, which is as long as it says.
Status CheckSealed(int fd, uint64_t bytes) {
  const int seals = fcntl(fd, F_GET_SEALS);
  if (seals < 0 || (seals & kSeals) != kSeals) {
    return Status(Code::kInvalidArgument,
                  "a large message must come in a sealed memfd");
  }
  struct stat info;
  if (fstat(fd, &info) != 0) return ErrnoStatus(errno, "stat message memfd");
  if (static_cast<uint64_t>(info.st_size) != bytes) {
    return Status(Code::kInvalidArgument,
                  "the message's memfd is not as long as its header says");
  }
  return Status();
}

// Takes every descriptor out of the control data, so that none can leak.
std::vector<UniqueFd> TakeFds(const msghdr& message) {
  std::vector<UniqueFd> fds;
  for (cmsghdr* c = CMSG_FIRSTHDR(&message); c != nullptr;
       c = CMSG_NXTHDR(const_cast<msghdr*>(&message), c)) {
    if (c->cmsg_level != SOL_SOCKET || c->cmsg_type != SCM_RIGHTS) continue;
    const size_t count = (c->cmsg_len - CMSG_LEN(0)) / sizeof(int);
    for (size_t i = 0; i < count; ++i) {
      int fd;
      std::memcpy(&fd, CMSG_DATA(c) + i * sizeof(int), sizeof(int));
      fds.emplace_back(fd);
    }
  }
  return fds;
}

Status AnotherVersion(uint32_t version, bool as_hoistd) {
  const std::string peer = std::to_string(version);
  const std::string own = std::to_string(kProtocolVersion);
  return Status(Code::kFailedPrecondition,
                as_hoistd ? "this libhoist speaks session protocol " + peer +
                                ", and hoistd " + ServedVersions() +
                                "; update whichever of them is older"
                          : "the peer speaks session protocol " + peer +
                                ", this side speaks " + own +
                                "; update libhoist or hoistd, whichever is "
                                "older");
}

Result<Packet> Decode(const FrameHeader& header, std::string_view inline_body,
                      std::vector<UniqueFd> fds,
                      const ReceiveOptions& options) {
  if (header.magic != kFrameMagic) {
    return Status(Code::kInvalidArgument, "not a hoist message");
  }
  const bool taken = options.as_hoistd
                         ? ServiceFor(header.version) != Service::kNone
                         : header.version == kProtocolVersion;
  if (!taken) return AnotherVersion(header.version, options.as_hoistd);
  if (header.body_bytes > kMaxBody || (header.flags & ~kBodyInMemfd) != 0) {
    return Status(Code::kInvalidArgument, "malformed message header");
  }
  if (header.body_bytes > options.max_body) {
    return Status(Code::kInvalidArgument,
                  "the message has " + std::to_string(header.body_bytes) +
                      " bytes; at most " + std::to_string(options.max_body) +
                      " are allowed");
  }
  Packet packet;
  packet.version = header.version;
  if ((header.flags & kBodyInMemfd) != 0) {
    if (fds.empty() || !inline_body.empty()) {
      return Status(Code::kInvalidArgument, "the message's memfd is missing");
    }
    if (Status s = CheckSealed(fds.back().get(), header.body_bytes); !s.ok()) {
      return s;
    }
    SealedBody sealed = {std::move(fds.back()), header.body_bytes};
    fds.pop_back();
    if (options.leave_sealed) {
      packet.sealed = std::move(sealed);
    } else {
      Result<std::string> body = ReadSealedBody(sealed);
      if (!body.ok()) return body.status();
      packet.body = std::move(body).value();
    }
  } else {
    if (inline_body.size() != header.body_bytes) {
      return Status(Code::kInvalidArgument, "malformed message length");
    }
    packet.body.assign(inline_body);
  }
  packet.fds = std::move(fds);
  return packet;
}

}  // namespace

Result<std::string> ReadSealedBody(const SealedBody& sealed) {
  const uint64_t bytes = sealed.bytes;
  std::string body(bytes, '\0');
  size_t done = 0;
  while (done < bytes) {
    const ssize_t n = pread(sealed.memfd.get(), body.data() + done,
                            bytes - done, static_cast<off_t>(done));
    if (n < 0 && errno == EINTR) continue;
    if (n <= 0) return ErrnoStatus(n < 0 ? errno : EIO, "read message memfd");
    done += static_cast<size_t>(n);
  }
  return body;
}

Result<UniqueFd> CreateMemfd(const char* name, uint64_t size) {
  UniqueFd fd(memfd_create(name, MFD_CLOEXEC | MFD_ALLOW_SEALING));
  if (!fd.valid()) return ErrnoStatus(errno, "memfd_create");
  if (ftruncate(fd.get(), static_cast<off_t>(size)) != 0) {
    return ErrnoStatus(errno, "size memfd");
  }
  return fd;
}

Status SealMemfd(int fd) {
  if (fcntl(fd, F_ADD_SEALS, kSeals | F_SEAL_SEAL) != 0) {
    return ErrnoStatus(errno, "seal memfd");
  }
  return Status();
}

Status SendPacket(int socket, std::string_view body, std::span<const int> fds,
                  bool* would_block, Sending sending, uint32_t version) {
  if (would_block != nullptr) *would_block = false;
  if (body.size() > kMaxBody || fds.size() >= kMaxFdsPerMessage) {
    return Status(Code::kResourceExhausted,
                  "message too large: " + std::to_string(body.size()) +
                      " bytes with " + std::to_string(fds.size()) +
                      " descriptors");
  }
  const uint32_t spoken = version == 0 ? kProtocolVersion : version;
  FrameHeader header = {kFrameMagic, static_cast<uint16_t>(spoken), 0,
                        body.size()};
  std::vector<int> all(fds.begin(), fds.end());
  UniqueFd memfd;
  if (body.size() > kMaxInlineBody) {
    Result<UniqueFd> made = CreateMemfd("hoist-message", body.size());
    if (!made.ok()) return made.status();
    memfd = std::move(made).value();
    if (Status s = WriteAll(memfd.get(), body); !s.ok()) return s;
    if (Status s = SealMemfd(memfd.get()); !s.ok()) return s;
    header.flags = kBodyInMemfd;
    all.push_back(memfd.get());
    body = {};
  }

  iovec parts[2] = {{&header, sizeof(header)},
                    {const_cast<char*>(body.data()), body.size()}};
  alignas(cmsghdr) char control[CMSG_SPACE(kMaxFdsPerMessage * sizeof(int))];
  msghdr message = {};
  message.msg_iov = parts;
  message.msg_iovlen = body.empty() ? 1 : 2;
  if (!all.empty()) {
    message.msg_control = control;
    message.msg_controllen = CMSG_SPACE(all.size() * sizeof(int));
    cmsghdr* c = CMSG_FIRSTHDR(&message);
    c->cmsg_level = SOL_SOCKET;
    c->cmsg_type = SCM_RIGHTS;
    c->cmsg_len = CMSG_LEN(all.size() * sizeof(int));
    std::memcpy(CMSG_DATA(c), all.data(), all.size() * sizeof(int));
  }
  const int flags =
      MSG_NOSIGNAL | (sending == Sending::kNow ? MSG_DONTWAIT : 0);
  while (true) {
    if (sendmsg(socket, &message, flags) >= 0) return Status();
    if (errno == EINTR) continue;
    if (would_block != nullptr && (errno == EAGAIN || errno == EWOULDBLOCK)) {
      *would_block = true;
    }
    return ErrnoStatus(errno, "send");
  }
}

Result<std::optional<Packet>> ReceivePacket(int socket, bool* would_block,
                                            const ReceiveOptions& options) {
  if (would_block != nullptr) *would_block = false;
  FrameHeader header;
  std::string buffer(kMaxInlineBody, '\0');
  iovec parts[2] = {{&header, sizeof(header)}, {buffer.data(), buffer.size()}};
  alignas(cmsghdr) char control[CMSG_SPACE(253 * sizeof(int))];
  msghdr message = {};
  message.msg_iov = parts;
  message.msg_iovlen = 2;
  message.msg_control = control;
  message.msg_controllen = sizeof(control);
  ssize_t n;
  do {
    n = recvmsg(socket, &message, MSG_CMSG_CLOEXEC);
  } while (n < 0 && errno == EINTR);
  if (n < 0) {
    if (would_block != nullptr && (errno == EAGAIN || errno == EWOULDBLOCK)) {
      *would_block = true;
      return std::optional<Packet>();
    }
    return ErrnoStatus(errno, "receive");
  }
  std::vector<UniqueFd> fds = TakeFds(message);
  if (n == 0) return std::optional<Packet>();
  // The room is enough for as many as the kernel takes into one message.
  if ((message.msg_flags & MSG_CTRUNC) != 0) {
    return Status(Code::kResourceExhausted,
                  "a message came with more descriptors than who received it "
                  "may open; raise RLIMIT_NOFILE (systemd: LimitNOFILE)");
  }
  if (static_cast<size_t>(n) < sizeof(header) ||
      (message.msg_flags & MSG_TRUNC) != 0) {
    return Status(Code::kInvalidArgument, "not a hoist message");
  }
  const size_t inline_bytes = static_cast<size_t>(n) - sizeof(header);
  Result<Packet> packet =
      Decode(header, std::string_view(buffer.data(), inline_bytes),
             std::move(fds), options);
  if (!packet.ok()) return packet.status();
  return std::optional<Packet>(std::move(packet).value());
}

}  // namespace hoist
