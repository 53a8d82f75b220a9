#ifndef HOIST_DAEMON_RPC_CONNECTIONS_H_
#define HOIST_DAEMON_RPC_CONNECTIONS_H_

#include <sys/types.h>

#include <cstdint>
#include <memory>
#include <optional>
#include <string>
#include <thread>

#include "absl/base/thread_annotations.h"
#include "absl/container/flat_hash_map.h"
#include "absl/functional/any_invocable.h"
#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "absl/synchronization/mutex.h"
#include "absl/time/time.h"
#include "daemon/core/requests.h"
#include "daemon/socket/acceptor.h"
#include "daemon/socket/listening_socket.h"
#include "daemon/socket/poller.h"
#include "hoist/shared/unique_fd.h"

namespace hoistd {

struct RpcLimits {
  size_t all = 1024;            // The last eighth is kept for admins.
  size_t one_uid = 512;         // One user cannot lock the others out.
  size_t calls_of_user = 4096;  // Over all of its connections.
  // A connection without a call is closed after this time. Clients reconnect
  // automatically with the next call.
  absl::Duration idle = absl::Minutes(5);
};

// Accepts gRPC's connections, to get each peer's credentials from the kernel.
//
// gRPC 1.51 identifies a unix peer only by its socket's path, which the client
// chooses. For a descriptor that it is given, it reports the peer as
// "fd:<number>". So this class accepts, asks the kernel, and records the peer
// by number. Numbers are used in rotation: a call of a connection that just
// closed may still look up its number, which must not be reused yet.
//
// Threads:  thread-safe. Owns one thread, which accepts, forgets, and runs
//           `hand_over`.
// Bounds:   RpcLimits; connections beyond them are closed at once. Without free
//           descriptors a connection is closed with HTTP/2's GOAWAY.
class Connections {
 public:
  // Takes a connected, non-blocking descriptor.
  using HandOver = absl::AnyInvocable<void(int fd)>;

  static absl::StatusOr<std::unique_ptr<Connections>> Create(
      ListeningSocket socket, std::optional<gid_t> admin_group,
      RpcLimits limits, std::optional<User> tenant = std::nullopt);
  ~Connections();  // Stop()s.

  // Accepts from now on. Once.
  absl::Status Start(HandOver hand_over);

  // The caller behind a grpc::ServerContext::peer(). Unavailable: the
  // connection is not one of ours, or has closed.
  absl::StatusOr<Peer> Find(absl::string_view grpc_peer) const
      ABSL_LOCKS_EXCLUDED(mu_);
  size_t count() const ABSL_LOCKS_EXCLUDED(mu_);
  // Stops accepting. gRPC ends the open connections.
  void Stop();

 private:
  struct Entry {
    Peer peer;
    // A second descriptor of the connection, polled for its end.
    hoist::UniqueFd watch;
    uint64_t serial = 0;
  };

  Connections(Acceptor acceptor, Poller poller,
              std::optional<gid_t> admin_group, RpcLimits limits,
              std::optional<User> tenant);
  absl::Status Prepare();
  void Run();
  void AcceptAll();
  void Take(hoist::UniqueFd accepted);
  bool HasRoom(const Peer& peer) const ABSL_LOCKS_EXCLUDED(mu_);
  // By serial, since a newer connection may have the number by now.
  void Forget(uint64_t serial) ABSL_LOCKS_EXCLUDED(mu_);
  // A duplicate under the next number in turn; invalid if there is none.
  hoist::UniqueFd NextNumber(int fd);

  Acceptor acceptor_;  // Only the thread accepts.
  Poller poller_;
  const std::optional<gid_t> admin_group_;
  const RpcLimits limits_;
  const std::optional<User> tenant_;  // The socket's owner.
  HandOver hand_over_;                // Only the thread calls it.
  hoist::UniqueFd stop_;
  uint64_t next_serial_ = 2;  // 0 and 1 are the stop and listening events.
  int next_number_ = 0;

  mutable absl::Mutex mu_;
  absl::flat_hash_map<int, Entry> by_number_ ABSL_GUARDED_BY(mu_);
  absl::flat_hash_map<uint64_t, int> number_of_ ABSL_GUARDED_BY(mu_);

  std::thread thread_;
};

}  // namespace hoistd

#endif  // HOIST_DAEMON_RPC_CONNECTIONS_H_
