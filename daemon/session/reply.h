// What the engine answers a request, and the packet it becomes.
#ifndef HOIST_DAEMON_SESSION_REPLY_H_
#define HOIST_DAEMON_SESSION_REPLY_H_

#include <array>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "daemon/core/requests.h"
#include "daemon/engine/engine_api.h"
#include "daemon/terms/ids.h"
#include "hoist/shared/packet_socket.h"
#include "hoist/shared/unique_fd.h"
#include "hoist/shared/wire.h"

namespace hoistd {

using ConnectionId = Id<struct ConnectionTag>;
using InstanceId = std::array<uint8_t, 16>;

// One slab a descriptor; SendPacket keeps a place for a large body's memfd.
inline constexpr size_t kMaxSlabFdsPerLease = hoist::kMaxFdsPerMessage - 1;

// Which request of which connection; travels with it through the engine.
struct Ticket {
  ConnectionId connection;
  uint64_t request_id = 0;
  size_t fds = 0;        // That came with the request, and may still be held.
  bool admitted = true;  // It counts as in flight until it is answered.
};

// A lease with slab descriptors of its own: the engine's are valid only while
// the lease is held, and the session may end before the reply is sent.
struct OwnedGrant {
  LeaseGrant grant;  // Its slabs name descriptors of `fds`.
  std::vector<hoist::UniqueFd> fds;
};

// Must run in the engine's callback. ResourceExhausted: more descriptors than
// a packet carries, or than this process may have.
absl::StatusOr<OwnedGrant> OwnGrant(LeaseGrant grant);

// A plan, likewise.
struct OwnedPlan {
  PlanGrant grant;                   // Its slabs name descriptors of `fds`.
  std::vector<hoist::UniqueFd> fds;  // The slabs', then the lane's two, if any.
};
absl::StatusOr<OwnedPlan> OwnPlan(OpenedPlan opened);

// An arena, likewise.
struct OwnedArena {
  ArenaGrant grant;  // Its slabs name descriptors of `fds`.
  std::vector<hoist::UniqueFd> fds;
};
absl::StatusOr<OwnedArena> OwnArena(ArenaGrant grant);

// A message that was received elsewhere, for its descriptors' sake.
struct TakenIn {
  absl::Status refused;  // Not OK: nobody receives for this user now.
  absl::StatusOr<std::optional<hoist::Packet>> packet;
};

struct Reply {
  Ticket ticket;
  absl::Status status;
  // What an OK carries: one of them, or none.
  std::optional<SessionId> session;  // OpenSession.
  ModelPtr model;
  std::unique_ptr<OwnedGrant> lease;
  std::unique_ptr<OwnedPlan> plan;
  std::unique_ptr<OwnedArena> arena;
  std::unique_ptr<OpenedCopier> copier;
  std::unique_ptr<Resumed> resumed;
  std::unique_ptr<std::vector<GroupHeat>> heat;
  std::unique_ptr<SlabAsk> ask;  // Answers nothing: hoistd asks.
  // Or nothing is answered, and this message is to be served.
  std::unique_ptr<TakenIn> taken_in;
  // The session cannot go on after it: client and engine would no longer agree
  // on which slabs the client has; or it was told to end.
  bool fatal = false;
  // A large request was taken in: what follows it may be read.
  bool read_on = false;
  bool answers = true;  // False: only what `read_on` says.
};

// One packet to a client.
struct Outbound {
  std::string body;
  std::vector<hoist::UniqueFd> fds;
};

Outbound EncodeError(uint64_t request_id, const absl::Status& status);
Outbound EncodeOpened(uint64_t request_id, SessionId session,
                      const NodeFacts& facts, const InstanceId& instance);
// What a session's client is told by the hoistd that goes on with it.
Outbound EncodeResumed(uint64_t number);
// Any reply but OpenSession's.
Outbound EncodeReply(Reply reply);

}  // namespace hoistd

#endif  // HOIST_DAEMON_SESSION_REPLY_H_
