#include "daemon/session/connection.h"

#include <sys/socket.h>

#include <string_view>
#include <vector>

#include "absl/strings/str_cat.h"
#include "daemon/base/check.h"
#include "daemon/base/status.h"

namespace hoistd {
namespace {

// What a queued message costs beside its body; keeps small ones bounded.
constexpr size_t kMessageOverhead = 256;
// Slab descriptors that wait for a client which does not read.
constexpr size_t kMaxQueuedFds = 4 * hoist::kMaxFdsPerMessage;

}  // namespace

Connection::Connection(ConnectionId id, hoist::UniqueFd socket,
                       PeerProcess process, ConnectionLimits limits)
    : id_(id),
      socket_(std::move(socket)),
      process_(std::move(process)),
      limits_(limits) {}

absl::StatusOr<std::optional<hoist::Packet>> Connection::Receive(
    uint64_t max_body) {
  bool would_block = false;
  hoist::Result<std::optional<hoist::Packet>> packet =
      hoist::ReceivePacket(socket_.get(), &would_block,
                           {.max_body = max_body, .leave_sealed = true});
  if (!packet.ok()) return ToAbsl(packet.status());
  // An empty packet cannot be told from the end; neither is a message.
  if (!packet->has_value() && !would_block) {
    return absl::CancelledError("the client closed the connection");
  }
  return std::move(packet).value();
}

size_t Connection::CostOf(const Outbound& message) {
  return message.body.size() + kMessageOverhead;
}

absl::Status Connection::Send(Outbound message) {
  queued_cost_ += CostOf(message);
  queued_fds_ += message.fds.size();
  queue_.push_back(std::move(message));
  HOIST_RETURN_IF_ERROR(Flush());
  if (queue_.size() > 1 && (queued_cost_ > limits_.max_outbound_bytes ||
                            queued_fds_ > kMaxQueuedFds)) {
    return absl::ResourceExhaustedError(absl::StrCat(
        "the client does not read: ", queue_.size(), " replies of ",
        queued_cost_, " bytes with ", queued_fds_, " descriptors wait for it"));
  }
  return absl::OkStatus();
}

absl::Status Connection::Flush() {
  while (!queue_.empty()) {
    const Outbound& next = queue_.front();
    std::vector<int> fds;
    fds.reserve(next.fds.size());
    for (const hoist::UniqueFd& fd : next.fds) fds.push_back(fd.get());
    bool would_block = false;
    const hoist::Status sent =
        hoist::SendPacket(socket_.get(), next.body, fds, &would_block);
    if (would_block) return absl::OkStatus();
    if (!sent.ok()) return ToAbsl(sent);
    queued_cost_ -= CostOf(next);
    queued_fds_ -= next.fds.size();
    queue_.pop_front();
  }
  return absl::OkStatus();
}

void Connection::HangUp(Outbound last) {
  Send(std::move(last)).IgnoreError();  // It ends here either way.
  // Closing a socket with unread packets resets the connection, and the reset
  // overtakes the reply. So: let nothing more in, and take what came. The
  // sender's buffer bounds how much that can be.
  shutdown(socket_.get(), SHUT_RDWR);
  char byte;
  while (recv(socket_.get(), &byte, 1, MSG_DONTWAIT) > 0) {
  }
}

absl::Status Connection::Admit(size_t fds) {
  if (in_flight_ >= limits_.max_in_flight) {
    return absl::ResourceExhaustedError(
        absl::StrCat(in_flight_, " requests of this session wait for replies, ",
                     "as many as are allowed; wait for one of them"));
  }
  if (in_flight_fds_ + fds > limits_.max_in_flight_fds) {
    return absl::ResourceExhaustedError(
        absl::StrCat("requests in flight hold ", in_flight_fds_,
                     " descriptors; ", fds, " more would pass the limit of ",
                     limits_.max_in_flight_fds, "; wait for one of them"));
  }
  ++in_flight_;
  in_flight_fds_ += fds;
  return absl::OkStatus();
}

void Connection::Finish(const Ticket& ticket) {
  HOIST_CHECK(in_flight_ > 0 && in_flight_fds_ >= ticket.fds);
  --in_flight_;
  in_flight_fds_ -= ticket.fds;
}

void Connection::FinishOpening(SessionId session) {
  session_ = session;
  phase_ = Phase::kOpen;
}

}  // namespace hoistd
