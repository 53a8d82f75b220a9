// The daemon's assembly: the only place that constructs concrete classes.
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
// Owns:     all parts, and destroys each after its borrowers.
class Hoistd {
 public:
  // `handed`: a listening session socket from systemd, if any, and the last
  // hoistd's descriptors. `store`: keeps descriptors for the next hoistd;
  // nullptr: none. `config`, `store` and `spawner` are borrowed. Changes of
  // `config` are applied. `on_status`: called on its own thread with a new
  // status line for systemd. Errors name the setting that corrects them.
  static absl::StatusOr<std::unique_ptr<Hoistd>> Create(
      RunningConfig& config, std::vector<HandedFd> handed, FdStore* store,
      HelperSpawner& spawner,
      std::function<void(const std::string&)> on_status);
  // Ends sessions at once, except those that the next hoistd continues. Running
  // gRPC calls get a second to finish. Does not wait for hanging files.
  ~Hoistd();

  // KeeperGone: the keeper has ended. StoreAgain: a new keeper is there; once
  // this returns OK it holds what outlives hoistd. Both write to the log and
  // the status.
  void KeeperGone();
  absl::Status StoreAgain();

  // Whether the engine has answered the last call's question; asks again. For
  // systemd's watchdog.
  bool Lives();

  // Call before the end. Stops answering sessions that the next hoistd
  // continues; their plans stream on. Refuses new sessions, models and plans.
  // Writes published images to disk that no disk has, while `go_on` returns
  // true; `left`: bytes to write. Returns the bytes left.
  uint64_t SavePublished(absl::FunctionRef<bool(uint64_t left)> go_on);

  // One line about devices and tiers, for the log and systemd's status.
  std::string Summary() const;

 private:
  struct Parts;
  explicit Hoistd(std::unique_ptr<Parts> parts);
  std::unique_ptr<Parts> parts_;
};

}  // namespace hoistd

#endif  // HOIST_DAEMON_APP_HOISTD_H_
