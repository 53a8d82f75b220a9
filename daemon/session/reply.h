// What the engine answers a request, and the packet it becomes.
#ifndef HOIST_DAEMON_SESSION_REPLY_H_
#define HOIST_DAEMON_SESSION_REPLY_H_

#include <array>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <optional>
#include <string>
#include <utility>
#include <variant>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "daemon/core/requests.h"
#include "daemon/engine/engine_api.h"
#include "daemon/types/ids.h"
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

// A grant whose slabs name descriptors of `fds`: the engine's are valid only
// while the grant stands, and the session may end before the reply is sent.
template <typename Grant>
struct Owned {
  Grant grant;
  std::vector<hoist::UniqueFd>
      fds;  // The slabs', then a plan's lane's, if any.
};

// What Reply carries of the engine's result. Must run in the engine's callback.
// ResourceExhausted: more descriptors than a packet carries, or than this
// process may have.
absl::StatusOr<Owned<LeaseGrant>> Own(LeaseGrant grant);
absl::StatusOr<Owned<PlanGrant>> Own(OpenedPlan opened);
absl::StatusOr<Owned<ArenaGrant>> Own(ArenaGrant grant);
template <typename Result>
absl::StatusOr<Result> Own(Result result) {
  return result;
}

// What an OK carries; a SlabAsk answers nothing: hoistd asks.
using ReplyBody =
    std::variant<std::monostate, ModelPtr, Owned<LeaseGrant>, Owned<PlanGrant>,
                 Owned<ArenaGrant>, OpenedPermit, Resumed,
                 std::vector<GroupHeat>, SlabAsk>;

// A message that was received elsewhere, for its descriptors' sake.
struct TakenIn {
  absl::Status refused;  // Not OK: nobody receives for this user now.
  absl::StatusOr<std::optional<hoist::Packet>> packet;
};

struct Reply {
  Ticket ticket;
  absl::Status status;
  ReplyBody body;
  std::optional<SessionId> session;  // OpenSession's OK has this instead.
  // Or nothing is answered, and this message is to be served.
  std::unique_ptr<TakenIn> taken_in;
  // The session cannot go on after it: client and engine would no longer agree
  // on which slabs the client has; or it was told to end.
  bool fatal = false;
  // A large request was taken in: what follows it may be read.
  bool read_on = false;
  bool answers = true;  // False: only what `read_on` says.
};

// The reply to `ticket`, in the engine's callback; see Own.
inline Reply ReplyOf(const Ticket& ticket, absl::Status status) {
  Reply reply;
  reply.ticket = ticket;
  reply.status = std::move(status);
  return reply;
}
template <typename Result>
Reply ReplyOf(const Ticket& ticket, absl::StatusOr<Result> result) {
  Reply reply = ReplyOf(ticket, result.status());
  if (!result.ok()) return reply;
  auto owned = Own(*std::move(result));
  reply.status = owned.status();
  reply.fatal = !owned.ok();
  if (owned.ok()) reply.body = *std::move(owned);
  return reply;
}

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
