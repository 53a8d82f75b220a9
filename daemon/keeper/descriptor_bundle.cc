#include "daemon/keeper/descriptor_bundle.h"

#include <sys/random.h>
#include <sys/socket.h>

#include <algorithm>
#include <cerrno>
#include <cstring>
#include <utility>

#include "absl/strings/str_cat.h"
#include "daemon/base/check.h"
#include "daemon/base/status.h"

namespace hoistd {
namespace {

// Carries a descriptor, or marks the end of a turn-over.
struct Message {
  uint64_t magic = 0x31444e554254534b;  // "KSTBUND1", as bytes.
  uint64_t id = 0;
  uint32_t kind = 0;
  uint32_t end = 0;
};

// An upper bound of the kernel's charge for one such message, in bytes.
constexpr uint64_t kMessageCost = 1024;

// `flags`: MSG_PEEK leaves the message queued and returns a duplicate
// descriptor.
absl::StatusOr<std::pair<Message, hoist::UniqueFd>> Receive(int socket,
                                                            int flags) {
  Message message;
  iovec part = {&message, sizeof(message)};
  alignas(cmsghdr) char control[CMSG_SPACE(sizeof(int))] = {};
  msghdr header = {};
  header.msg_iov = &part;
  header.msg_iovlen = 1;
  header.msg_control = control;
  // Not sizeof(control), whose padding has room for a second descriptor.
  header.msg_controllen = CMSG_LEN(sizeof(int));
  ssize_t got;
  do {
    got = recvmsg(socket, &header, flags | MSG_DONTWAIT | MSG_CMSG_CLOEXEC);
  } while (got < 0 && errno == EINTR);
  if (got < 0) return ErrnoToStatus(errno, "take a kept descriptor");
  hoist::UniqueFd fd;
  const cmsghdr* found = CMSG_FIRSTHDR(&header);
  if (found != nullptr && found->cmsg_level == SOL_SOCKET &&
      found->cmsg_type == SCM_RIGHTS &&
      found->cmsg_len == CMSG_LEN(sizeof(int))) {
    int number;
    std::memcpy(&number, CMSG_DATA(found), sizeof(number));
    fd = hoist::UniqueFd(number);
  }
  const bool truncated = (header.msg_flags & MSG_CTRUNC) != 0;
  if (truncated && !fd.valid()) {
    // The process has no free descriptor number.
    return absl::ResourceExhaustedError(
        "no descriptor is left to take a kept one; raise LimitNOFILE");
  }
  if (truncated || got != sizeof(message) || message.magic != Message().magic ||
      message.end > 1 || (message.end == 0) != fd.valid()) {
    return absl::DataLossError("a bundle holds what no hoistd kept");
  }
  return std::make_pair(message, std::move(fd));
}

absl::Status SendMessage(int socket, const Message& message, int fd) {
  iovec part = {const_cast<Message*>(&message), sizeof(message)};
  alignas(cmsghdr) char control[CMSG_SPACE(sizeof(int))] = {};
  msghdr header = {};
  header.msg_iov = &part;
  header.msg_iovlen = 1;
  if (fd >= 0) {
    header.msg_control = control;
    header.msg_controllen = sizeof(control);
    cmsghdr* rights = CMSG_FIRSTHDR(&header);
    rights->cmsg_level = SOL_SOCKET;
    rights->cmsg_type = SCM_RIGHTS;
    rights->cmsg_len = CMSG_LEN(sizeof(int));
    std::memcpy(CMSG_DATA(rights), &fd, sizeof(fd));
  }
  ssize_t sent;
  do {
    sent = sendmsg(socket, &header, MSG_DONTWAIT | MSG_NOSIGNAL);
  } while (sent < 0 && errno == EINTR);
  if (sent == sizeof(message)) return absl::OkStatus();
  if (errno == EAGAIN || errno == ETOOMANYREFS) {
    return absl::ResourceExhaustedError(
        errno == EAGAIN
            ? "the bundle is full"
            : "more descriptors are kept than the user may have; raise "
              "LimitNOFILE");
  }
  return ErrnoToStatus(errno, "keep a descriptor");
}

uint64_t MostFor(int socket) {
  int wanted = static_cast<int>(DescriptorBundle::kMost * kMessageCost);
  setsockopt(socket, SOL_SOCKET, SO_SNDBUF, &wanted, sizeof(wanted));
  int got = 0;
  socklen_t size = sizeof(got);
  getsockopt(socket, SOL_SOCKET, SO_SNDBUF, &got, &size);
  // A turn-over queues two more messages: a copy, and the end mark.
  const uint64_t fit = static_cast<uint64_t>(std::max(got, 0)) / kMessageCost;
  return std::clamp<uint64_t>(fit > 2 ? fit - 2 : 1, 1,
                              DescriptorBundle::kMost);
}

}  // namespace

DescriptorBundle::DescriptorBundle(hoist::UniqueFd in, hoist::UniqueFd out)
    : in_(std::move(in)), out_(std::move(out)), most_(MostFor(in_.get())) {}

absl::StatusOr<DescriptorBundle> DescriptorBundle::Create() {
  int ends[2];
  if (socketpair(AF_UNIX, SOCK_SEQPACKET | SOCK_CLOEXEC, 0, ends) != 0) {
    return ErrnoToStatus(errno, "make a bundle");
  }
  return DescriptorBundle(hoist::UniqueFd(ends[0]), hoist::UniqueFd(ends[1]));
}

absl::StatusOr<DescriptorBundle> DescriptorBundle::Adopt(
    hoist::UniqueFd in, hoist::UniqueFd out, FoundDescriptor found) {
  DescriptorBundle bundle(std::move(in), std::move(out));
  // A turn-over that was cut short leaves a key twice: original and copy.
  const auto stays = [&](PersistedKey key) {
    return bundle.keys_.insert(key).second;
  };
  HOIST_RETURN_IF_ERROR(bundle.TurnOver(stays, found));
  return bundle;
}

absl::Status DescriptorBundle::Send(PersistedKey key, int fd) {
  Message message;
  message.kind = key.kind;
  message.id = key.id;
  return SendMessage(in_.get(), message, fd);
}

absl::Status DescriptorBundle::Add(PersistedKey key, int fd) {
  HOIST_CHECK(!Has(key));
  if (full()) return absl::ResourceExhaustedError("the bundle is full");
  HOIST_RETURN_IF_ERROR(Send(key, fd));
  keys_.insert(key);
  return absl::OkStatus();
}

absl::Status DescriptorBundle::Remove(PersistedKey key) {
  HOIST_CHECK(Has(key));
  return RemoveIf([&](PersistedKey of) { return of == key; });
}

absl::Status DescriptorBundle::RemoveIf(
    absl::FunctionRef<bool(PersistedKey)> meant) {
  if (std::none_of(keys_.begin(), keys_.end(), meant)) return absl::OkStatus();
  HOIST_RETURN_IF_ERROR(TurnOver([&](PersistedKey of) { return !meant(of); },
                                 [](PersistedKey, hoist::UniqueFd) {}));
  std::erase_if(keys_, meant);
  return absl::OkStatus();
}

absl::Status DescriptorBundle::TurnOver(
    absl::FunctionRef<bool(PersistedKey)> stays, FoundDescriptor found) {
  // Unique: the queue may hold the end mark of an earlier turn-over that was
  // killed.
  Message end;
  end.end = 1;
  if (getrandom(&end.id, sizeof(end.id), 0) != sizeof(end.id)) {
    return ErrnoToStatus(errno, "a random number");
  }
  HOIST_RETURN_IF_ERROR(SendMessage(in_.get(), end, -1));
  while (true) {
    HOIST_ASSIGN_OR_RETURN(auto taken, Receive(out_.get(), MSG_PEEK));
    auto& [message, fd] = taken;
    const PersistedKey key = {message.kind, message.id};
    if (message.end == 0 && stays(key)) {
      HOIST_RETURN_IF_ERROR(Send(key, fd.get()));
      found(key, std::move(fd));
    }
    HOIST_RETURN_IF_ERROR(Receive(out_.get(), 0).status());
    if (message.end == 1 && message.id == end.id) return absl::OkStatus();
  }
}

}  // namespace hoistd
