#include "daemon/session/mailbox.h"

#include <sys/eventfd.h>

#include <cerrno>
#include <memory>
#include <utility>

#include "daemon/base/status.h"

namespace hoistd {

absl::StatusOr<std::unique_ptr<Mailbox>> Mailbox::Create() {
  hoist::UniqueFd event(eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK));
  if (!event.valid()) return ErrnoToStatus(errno, "make eventfd");
  return std::unique_ptr<Mailbox>(new Mailbox(std::move(event)));
}

bool Mailbox::Post(Reply reply) {
  {
    absl::MutexLock lock(&mu_);
    if (closed_) return false;
    replies_.push_back(std::move(reply));
    if (replies_.size() > 1) return true;  // Woken already.
  }
  Wake();
  return true;
}

std::vector<Reply> Mailbox::TakeAll() {
  eventfd_t count;
  eventfd_read(fd(), &count);  // EAGAIN: a spurious wake-up, harmless.
  absl::MutexLock lock(&mu_);
  return std::exchange(replies_, {});
}

std::vector<Reply> Mailbox::Close() {
  absl::MutexLock lock(&mu_);
  closed_ = true;
  return std::exchange(replies_, {});
}

void Mailbox::Wake() {
  // EAGAIN: the counter is at its maximum, so the fd is readable already.
  eventfd_write(fd(), 1);
}

}  // namespace hoistd
