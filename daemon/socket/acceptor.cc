#include "daemon/socket/acceptor.h"

#include <fcntl.h>
#include <sys/socket.h>

#include <cerrno>

#include "daemon/base/status.h"

namespace hoistd {
namespace {

hoist::UniqueFd AnyFd() {
  return hoist::UniqueFd(open("/dev/null", O_RDONLY | O_CLOEXEC));
}

hoist::UniqueFd AcceptOne(int fd) {
  hoist::UniqueFd accepted;
  do {
    accepted = hoist::UniqueFd(
        accept4(fd, nullptr, nullptr, SOCK_NONBLOCK | SOCK_CLOEXEC));
  } while (!accepted.valid() && (errno == EINTR || errno == ECONNABORTED));
  return accepted;
}

}  // namespace

absl::StatusOr<Acceptor> Acceptor::Create(ListeningSocket listening) {
  hoist::UniqueFd spare = AnyFd();
  if (!spare.valid()) return ErrnoToStatus(errno, "open /dev/null");
  return Acceptor(std::move(listening), std::move(spare));
}

std::pair<Acceptor::Outcome, hoist::UniqueFd> Acceptor::Accept() {
  hoist::UniqueFd accepted = AcceptOne(fd());
  if (accepted.valid()) return {Outcome::kAccepted, std::move(accepted)};
  if (errno == EAGAIN || errno == EWOULDBLOCK)
    return {Outcome::kNothing, hoist::UniqueFd()};
  if (!OutOfFds(errno) || !spare_.valid())
    return {Outcome::kExhausted, hoist::UniqueFd()};
  spare_.reset();
  accepted = AcceptOne(fd());
  if (accepted.valid()) return {Outcome::kNoRoom, std::move(accepted)};
  Restock();
  return {Outcome::kExhausted, hoist::UniqueFd()};
}

void Acceptor::Restock() {
  if (!spare_.valid()) spare_ = AnyFd();
}

}  // namespace hoistd
