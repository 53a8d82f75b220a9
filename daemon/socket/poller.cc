#include "daemon/socket/poller.h"

#include <cerrno>
#include <utility>

#include "daemon/base/check.h"
#include "daemon/base/status.h"

namespace hoistd {

absl::StatusOr<Poller> Poller::Create() {
  hoist::UniqueFd fd(epoll_create1(EPOLL_CLOEXEC));
  if (!fd.valid()) return ErrnoToStatus(errno, "make epoll");
  return Poller(std::move(fd));
}

absl::Status Poller::Control(int operation, int fd, uint32_t events,
                             uint64_t key) {
  epoll_event event = {};
  event.events = events;
  event.data.u64 = key;
  if (epoll_ctl(fd_.get(), operation, fd, &event) != 0) {
    return ErrnoToStatus(errno, "watch a descriptor");
  }
  return absl::OkStatus();
}

absl::Status Poller::Add(int fd, uint32_t events, uint64_t key) {
  return Control(EPOLL_CTL_ADD, fd, events, key);
}

absl::Status Poller::Change(int fd, uint32_t events, uint64_t key) {
  return Control(EPOLL_CTL_MOD, fd, events, key);
}

std::vector<epoll_event> Poller::Wait(int timeout_ms) {
  std::vector<epoll_event> events(64);
  const int count = epoll_wait(fd_.get(), events.data(),
                               static_cast<int>(events.size()), timeout_ms);
  HOIST_CHECK(count >= 0 || errno == EINTR);
  events.resize(count < 0 ? 0 : static_cast<size_t>(count));
  return events;
}

}  // namespace hoistd
