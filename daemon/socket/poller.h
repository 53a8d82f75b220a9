#ifndef HOIST_DAEMON_SOCKET_POLLER_H_
#define HOIST_DAEMON_SOCKET_POLLER_H_

#include <sys/epoll.h>

#include <cstdint>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "hoist/shared/unique_fd.h"

namespace hoistd {

// Level-triggered epoll; each event carries the caller's number.
class Poller {
 public:
  static absl::StatusOr<Poller> Create();

  absl::Status Add(int fd, uint32_t events, uint64_t key);
  absl::Status Change(int fd, uint32_t events, uint64_t key);
  // Waits without limit if `timeout_ms` is -1. Empty: timeout or interruption.
  std::vector<epoll_event> Wait(int timeout_ms);

 private:
  explicit Poller(hoist::UniqueFd fd) : fd_(std::move(fd)) {}
  absl::Status Control(int operation, int fd, uint32_t events, uint64_t key);

  hoist::UniqueFd fd_;
};

}  // namespace hoistd

#endif  // HOIST_DAEMON_SOCKET_POLLER_H_
