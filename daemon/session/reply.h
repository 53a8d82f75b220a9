// The engine's answer to a request, and its encoding as a packet.
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

// One descriptor per slab; SendPacket reserves one for a large body's memfd.
inline constexpr size_t kMaxSlabFdsPerLease = hoist::kMaxFdsPerMessage - 1;

// Identifies a request and its connection, on its way through the engine.
struct Ticket {
  ConnectionId connection;
  uint64_t request_id = 0;
  size_t fds = 0;        // Came with the request, and may still be held.
  bool admitted = true;  // Counts as in flight until it is answered.
  // Of a PublishRequest with `group_alone`: its group's name.
  std::string group_alone = {};
};

// A grant whose slabs refer to duplicated descriptors in `fds`. The engine's
// own are valid only as long as the grant, and the session may end before the
// reply is sent.
template <typename Grant>
struct Owned {
  Grant grant;
  std::vector<hoist::UniqueFd>
      fds;  // The slabs', then a plan's lane's, if any.
};

// Converts the engine's result to Reply's form. Must run in the engine's
// callback. ResourceExhausted: more descriptors than a packet can carry, or
// this process may open.
absl::StatusOr<Owned<LeaseGrant>> Own(LeaseGrant grant);
absl::StatusOr<Owned<PlanGrant>> Own(OpenedPlan opened);
absl::StatusOr<Owned<ArenaGrant>> Own(ArenaGrant grant);
template <typename Result>
absl::StatusOr<Result> Own(Result result) {
  return result;
}

// The body of an OK. SlabAsk, GiveWay and Wake answer no request: hoistd asks
// the client.
using ReplyBody =
    std::variant<std::monostate, ModelPtr, Owned<LeaseGrant>, Owned<PlanGrant>,
                 Owned<ArenaGrant>, OpenedPermit, Resumed,
                 std::vector<GroupHeat>, SlabAsk, GiveWay, Wake>;

// A message that an I/O helper received, because it has descriptors.
struct TakenIn {
  absl::Status refused;  // Not OK: no helper can receive for this user now.
  absl::StatusOr<std::optional<hoist::Packet>> packet;
};

struct Reply {
  Ticket ticket;
  absl::Status status;
  ReplyBody body;
  std::optional<SessionId> session;  // OpenSession's OK has this instead.
  // If set, this is no answer, but a received message to be served.
  std::unique_ptr<TakenIn> taken_in;
  // The session must end after this reply: it was told to, or client and engine
  // would no longer agree on the client's slabs.
  bool fatal = false;
  // A large request was received, so the next message may be read.
  bool read_on = false;
  bool answers = true;  // False: only `read_on` matters.
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
// Tells a session's client that this hoistd has adopted the session.
Outbound EncodeResumed(uint64_t number);
// Any reply but OpenSession's.
Outbound EncodeReply(Reply reply);

}  // namespace hoistd

#endif  // HOIST_DAEMON_SESSION_REPLY_H_
