// The daemon, put together: the only place that builds concrete things.
#ifndef HOIST_DAEMON_HOISTD_H_
#define HOIST_DAEMON_HOISTD_H_

#include <memory>

#include "absl/status/statusor.h"
#include "absl/time/time.h"
#include "daemon/config/config.h"
#include "daemon/errand/errand_spawner.h"
#include "hoist/shared/unique_fd.h"

namespace hoistd {

// Threads:  Create and the destructor from one thread.
// Owns:     everything that runs. What others borrow is destroyed after them.
class Hoistd {
 public:
  // `session_fd`: a listening session socket from systemd, or none. Errors name
  // the setting that would mend them.
  // `spawner` is borrowed.
  static absl::StatusOr<std::unique_ptr<Hoistd>> Create(
      const Config& config, hoist::UniqueFd session_fd, ErrandSpawner& spawner);
  // Sessions end at once; gRPC calls that run get a second to finish. Files
  // that hang are not waited for.
  ~Hoistd();

  // What it serves, in a line, for the log and systemd's status.
  std::string Summary() const;

 private:
  struct Parts;
  explicit Hoistd(std::unique_ptr<Parts> parts);
  std::unique_ptr<Parts> parts_;
};

}  // namespace hoistd

#endif  // HOIST_DAEMON_HOISTD_H_
