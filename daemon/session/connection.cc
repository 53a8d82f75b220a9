#include "daemon/session/connection.h"

#include <sys/socket.h>

#include <string_view>
#include <vector>

#include "absl/strings/str_cat.h"
#include "daemon/base/check.h"
#include "daemon/base/status.h"

namespace hoistd {
namespace {

// The cost of a queued message besides its body, to bound small ones.
constexpr size_t kMessageOverhead = 256;
// Slab descriptors queued for a client that does not read.
constexpr size_t kMaxQueuedFds = 4 * hoist::kMaxFdsPerMessage;

absl::Status CheckRoom(absl::string_view whose, const Load& load, size_t fds,
                       size_t max_in_flight, size_t max_in_flight_fds) {
  if (load.in_flight >= max_in_flight) {
    return absl::ResourceExhaustedError(
        absl::StrCat(load.in_flight, " requests of ", whose,
                     " wait for replies, as many as are allowed; wait for one "
                     "of them"));
  }
  if (load.in_flight_fds + fds > max_in_flight_fds) {
    return absl::ResourceExhaustedError(absl::StrCat(
        "requests in flight of ", whose, " hold ", load.in_flight_fds,
        " descriptors; ", fds, " more would pass the limit of ",
        max_in_flight_fds, "; wait for one of them"));
  }
  return absl::OkStatus();
}

}  // namespace

Connection::Connection(ConnectionId id, hoist::UniqueFd socket,
                       PeerProcess process, ConnectionLimits limits,
                       std::shared_ptr<Load> of_uid)
    : id_(id),
      socket_(std::move(socket)),
      process_(std::move(process)),
      limits_(limits),
      of_uid_(std::move(of_uid)) {}

Connection::~Connection() {
  of_uid_->in_flight -= load_.in_flight;
  of_uid_->in_flight_fds -= load_.in_flight_fds;
  of_uid_->outbound_bytes -= load_.outbound_bytes;
}

absl::StatusOr<std::optional<hoist::Packet>> Connection::Receive(
    uint64_t max_body) {
  bool would_block = false;
  hoist::Result<std::optional<hoist::Packet>> packet = hoist::ReceivePacket(
      socket_.get(), &would_block,
      {.max_body = max_body, .leave_sealed = true, .as_hoistd = true});
  if (!packet.ok()) return ToAbsl(packet.status());
  // An empty packet cannot be told from the end; neither is a message.
  if (!packet->has_value() && !would_block) {
    return absl::CancelledError("the client closed the connection");
  }
  if (packet->has_value()) {
    if (protocol_ == 0) protocol_ = (*packet)->version;
    if ((*packet)->version != protocol_) {
      return absl::FailedPreconditionError(
          absl::StrCat("the client spoke session protocol ", protocol_,
                       ", and now ", (*packet)->version));
    }
  }
  return std::move(packet).value();
}

// If the buffer has no room for descriptors, the kernel reports that there were
// some, and drops them without a call of their file system.
bool Connection::NextBringsFds() const {
  char byte;
  iovec part = {&byte, 1};
  msghdr message = {};
  message.msg_iov = &part;
  message.msg_iovlen = 1;
  const ssize_t n = recvmsg(socket_.get(), &message, MSG_PEEK | MSG_DONTWAIT);
  return n >= 0 && (message.msg_flags & MSG_CTRUNC) != 0;
}

std::optional<std::string> Connection::ReceiveBody() {
  std::string packet(hoist::kMaxPacket, '\0');
  const ssize_t n =
      recv(socket_.get(), packet.data(), packet.size(), MSG_DONTWAIT);
  if (n <= static_cast<ssize_t>(sizeof(hoist::FrameHeader))) {
    return std::nullopt;
  }
  return packet.substr(sizeof(hoist::FrameHeader),
                       static_cast<size_t>(n) - sizeof(hoist::FrameHeader));
}

size_t Connection::CostOf(const Outbound& message) {
  return message.body.size() + kMessageOverhead;
}

absl::Status Connection::Send(Outbound message) {
  load_.outbound_bytes += CostOf(message);
  of_uid_->outbound_bytes += CostOf(message);
  queued_fds_ += message.fds.size();
  queue_.push_back(std::move(message));
  HOIST_RETURN_IF_ERROR(Flush());
  if (queue_.size() > 1 &&
      (load_.outbound_bytes > limits_.max_outbound_bytes ||
       of_uid_->outbound_bytes > limits_.max_outbound_bytes_of_uid ||
       queued_fds_ > kMaxQueuedFds)) {
    return absl::ResourceExhaustedError(
        absl::StrCat("the client does not read: ", queue_.size(),
                     " replies of ", load_.outbound_bytes, " bytes with ",
                     queued_fds_, " descriptors wait for it"));
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
        hoist::SendPacket(socket_.get(), next.body, fds, &would_block,
                          hoist::Sending::kAsTheSocketDoes, protocol_);
    if (would_block) return absl::OkStatus();
    if (!sent.ok()) return ToAbsl(sent);
    load_.outbound_bytes -= CostOf(next);
    of_uid_->outbound_bytes -= CostOf(next);
    queued_fds_ -= next.fds.size();
    queue_.pop_front();
  }
  return absl::OkStatus();
}

void Connection::DropQueue() {
  for (const Outbound& message : queue_) {
    load_.outbound_bytes -= CostOf(message);
    of_uid_->outbound_bytes -= CostOf(message);
  }
  queue_.clear();
  queued_fds_ = 0;
}

void Connection::HangUp(Outbound last) {
  if (hung_up_) return;
  Send(std::move(last)).IgnoreError();  // The connection ends in any case.
  hung_up_ = true;
  if (phase_ == Phase::kOpen) {
    DropQueue();  // A client that does not read loses its replies.
    shutdown(socket_.get(), SHUT_WR);
    return;
  }
  // Closing a socket with unread packets resets the connection, and the reset
  // overtakes the reply. So refuse new packets, and drain those that arrived.
  // The sender's buffer bounds their number.
  shutdown(socket_.get(), SHUT_RDWR);
  char byte;
  while (!(keeps_fds_ && NextBringsFds()) &&
         recv(socket_.get(), &byte, 1, MSG_DONTWAIT) > 0) {
  }
}

absl::Status Connection::Admit(size_t fds) {
  HOIST_RETURN_IF_ERROR(CheckRoom("this session", load_, fds,
                                  limits_.max_in_flight,
                                  limits_.max_in_flight_fds));
  HOIST_RETURN_IF_ERROR(CheckRoom("your uid's sessions", *of_uid_, fds,
                                  limits_.max_in_flight_of_uid,
                                  limits_.max_in_flight_fds_of_uid));
  for (Load* load : {&load_, of_uid_.get()}) {
    ++load->in_flight;
    load->in_flight_fds += fds;
  }
  return absl::OkStatus();
}

void Connection::Finish(const Ticket& ticket) {
  HOIST_CHECK(load_.in_flight > 0 && load_.in_flight_fds >= ticket.fds);
  for (Load* load : {&load_, of_uid_.get()}) {
    --load->in_flight;
    load->in_flight_fds -= ticket.fds;
  }
}

void Connection::BeginResuming(SessionId session, uint64_t number) {
  FinishOpening(session);
  resuming_ = number;
  goes_on_ = true;
}

void Connection::FinishOpening(SessionId session) {
  session_ = session;
  phase_ = Phase::kOpen;
}

}  // namespace hoistd
