// The holder of descriptors while hoistd is down: systemd, or hoist-keeper.
#ifndef HOIST_DAEMON_KEEPER_FD_STORE_H_
#define HOIST_DAEMON_KEEPER_FD_STORE_H_

#include <memory>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "hoist/shared/unique_fd.h"

namespace hoistd {

// Threads: one at a time.
class FdStore {
 public:
  virtual ~FdStore() = default;

  // Once it is Ok the store has a duplicate of each, under the name, whatever
  // becomes of this process.
  virtual absl::Status Store(const std::string& name,
                             const std::vector<int>& fds) = 0;
  // Closes what it has of this name.
  virtual absl::Status Remove(const std::string& name) = 0;
};

// A descriptor that this process got at its start (sd_listen_fds(3)): a
// listening socket, or one that a predecessor stored.
struct HandedFd {
  std::string name;
  hoist::UniqueFd fd;
};
// Takes them; they are close-on-exec, and the environment no longer names them.
std::vector<HandedFd> TakeHandedFds();

// $NOTIFY_SOCKET, as sd_notify(3) has it; nullptr where there is none.
std::unique_ptr<FdStore> NotifyFdStore();

}  // namespace hoistd

#endif  // HOIST_DAEMON_KEEPER_FD_STORE_H_
