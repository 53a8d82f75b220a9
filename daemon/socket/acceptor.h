#ifndef HOIST_DAEMON_SOCKET_ACCEPTOR_H_
#define HOIST_DAEMON_SOCKET_ACCEPTOR_H_

#include <utility>

#include "absl/status/statusor.h"
#include "daemon/socket/listening_socket.h"
#include "hoist/shared/unique_fd.h"

namespace hoistd {

// Accepts connections, even without free descriptors: one is kept in reserve,
// so that a client that cannot be served gets an error instead of a hang.
class Acceptor {
 public:
  static absl::StatusOr<Acceptor> Create(ListeningSocket listening);

  enum class Outcome {
    kAccepted,   // Serve it.
    kNoRoom,     // Took the reserve: report it, close it, and Restock.
    kNothing,    // No connection is pending.
    kExhausted,  // Not even the reserve helps: try again later.
  };
  std::pair<Outcome, hoist::UniqueFd> Accept();
  // Refills the reserve, if a descriptor is free.
  void Restock();

  int fd() const { return listening_.get(); }

 private:
  Acceptor(ListeningSocket listening, hoist::UniqueFd spare)
      : listening_(std::move(listening)), spare_(std::move(spare)) {}

  ListeningSocket listening_;
  hoist::UniqueFd spare_;
};

}  // namespace hoistd

#endif  // HOIST_DAEMON_SOCKET_ACCEPTOR_H_
