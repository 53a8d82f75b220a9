// The other process: a worker that maps slabs, or a daemon that makes them.
#ifndef HOIST_TESTS_CONFORMANCE_DEVICE_PEER_H_
#define HOIST_TESTS_CONFORMANCE_DEVICE_PEER_H_

#include <sys/types.h>

#include <cstddef>
#include <memory>
#include <span>
#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "hoist/shared/packet_socket.h"
#include "hoist/shared/unique_fd.h"

namespace hoistd::testing {

// Runs device_conformance_peer, which lies beside this program. See its source
// for the commands.
//
// Owns:     the process; kills and reaps it on destruction.
class Peer {
 public:
  static absl::StatusOr<std::unique_ptr<Peer>> Spawn();
  Peer(const Peer&) = delete;
  Peer& operator=(const Peer&) = delete;
  ~Peer();

  // The answer after its "ok "; the error the peer answered with; Aborted if
  // it died instead.
  absl::StatusOr<hoist::Packet> Call(const std::string& command,
                                     std::vector<int> fds = {});
  // As Call, for answers that are bytes.
  absl::StatusOr<std::vector<std::byte>> Read(uint64_t offset, uint64_t bytes);

  void Kill();
  // Reaps a peer that died, and says by which signal (0: it exited).
  int DeathSignal();

 private:
  Peer(pid_t pid, hoist::UniqueFd socket);

  pid_t pid_;  // -1: reaped.
  hoist::UniqueFd socket_;
};

}  // namespace hoistd::testing

#endif  // HOIST_TESTS_CONFORMANCE_DEVICE_PEER_H_
