// The daemon, put together: the only place that builds concrete things.
#ifndef HOIST_DAEMON_APP_HOISTD_H_
#define HOIST_DAEMON_APP_HOISTD_H_

#include <cstdint>
#include <functional>
#include <memory>
#include <string>
#include <vector>

#include "absl/functional/function_ref.h"
#include "absl/status/statusor.h"
#include "absl/time/time.h"
#include "daemon/app/running_config.h"
#include "daemon/io_helper/helper_spawner.h"
#include "daemon/keeper/fd_store.h"

namespace hoistd {

// Threads:  Create and the destructor from one thread.
// Owns:     everything that runs. What others borrow is destroyed after them.
class Hoistd {
 public:
  // `handed`: a listening session socket from systemd, or none, and what the
  // last hoistd kept. `store`: who keeps what the next one is to have; nullptr:
  // nobody. Both, `config` and `spawner` are borrowed; what `config` is changed
  // to while it runs, it takes over. `on_status`: told what it does, in
  // a line for systemd, when that has changed; on a thread of its own. Errors
  // name the setting that corrects them.
  static absl::StatusOr<std::unique_ptr<Hoistd>> Create(
      RunningConfig& config, std::vector<HandedFd> handed, FdStore* store,
      HelperSpawner& spawner,
      std::function<void(const std::string&)> on_status);
  // Sessions end at once, but for those that go on with the next hoistd; gRPC
  // calls that run get a second to finish. Files that hang are not waited for.
  ~Hoistd();

  // The keeper has ended; or another is there, and has what is to outlive
  // hoistd once this returns OK. Both are told in the log and status.
  void KeeperGone();
  absl::Status StoreAgain();

  // Whether it has answered since this was asked last, and asks anew. For
  // systemd's watchdog.
  bool Lives();

  // Before it ends: answers no session any more that goes on with the next
  // hoistd, while its plans stream on; takes no new sessions, models or plans,
  // and writes to the disk what is published and on none, while `go_on`, told
  // how many bytes are left, says so. How many bytes are left.
  uint64_t SavePublished(absl::FunctionRef<bool(uint64_t left)> go_on);

  // What it serves, in a line, for the log and systemd's status.
  std::string Summary() const;

 private:
  struct Parts;
  explicit Hoistd(std::unique_ptr<Parts> parts);
  std::unique_ptr<Parts> parts_;
};

}  // namespace hoistd

#endif  // HOIST_DAEMON_APP_HOISTD_H_
