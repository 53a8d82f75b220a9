#ifndef HOIST_DAEMON_SESSION_CONNECTION_H_
#define HOIST_DAEMON_SESSION_CONNECTION_H_

#include <cstddef>
#include <cstdint>
#include <deque>
#include <memory>
#include <optional>
#include <string>
#include <utility>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "daemon/session/reply.h"
#include "daemon/socket/peer_process.h"
#include "hoist/shared/packet_socket.h"

namespace hoistd {

struct ConnectionLimits {
  size_t max_outbound_bytes = size_t{64} << 20;
  size_t max_in_flight = 256;
  size_t max_in_flight_fds = 1024;
  // Totals over all connections of a uid.
  size_t max_outbound_bytes_of_uid = size_t{256} << 20;
  size_t max_in_flight_of_uid = 4096;
  size_t max_in_flight_fds_of_uid = 4096;
};

// The current use of ConnectionLimits, by one connection or all of a uid's.
struct Load {
  size_t in_flight = 0;
  size_t in_flight_fds = 0;
  size_t outbound_bytes = 0;
};

// The connection of one client, and the phase of its session.
//
// An error from Receive, Send or Flush must end the connection; a retry is
// useless.
//
// Threads:  only the session thread. Never blocks.
// Bounds:   ConnectionLimits bound the replies that the client has not read;
//           one reply of any size is always accepted.
class Connection {
 public:
  // kNew: OpenSession must come. kOpening: the engine has it.
  enum class Phase { kNew, kOpening, kOpen };

  // `of_uid` is shared with the uid's other connections.
  Connection(ConnectionId id, hoist::UniqueFd socket, PeerProcess process,
             ConnectionLimits limits, std::shared_ptr<Load> of_uid);
  ~Connection();

  // nullopt: nothing to read now. Cancelled: the client closed the connection.
  // InvalidArgument, FailedPrecondition: garbage, a body of more than
  // `max_body` bytes (which is not read), or a protocol version that is not
  // served or has changed. A body in a memfd stays there.
  absl::StatusOr<std::optional<hoist::Packet>> Receive(uint64_t max_body);

  // Whether the next message carries descriptors. Receives none of them.
  bool NextBringsFds() const;
  // As Receive, but drops the message's descriptors without receiving them.
  // nullopt: there is no message, or its body is in one of the descriptors.
  std::optional<std::string> ReceiveBody();

  // Sends in order, as much as the socket accepts; the rest waits for Flush.
  // ResourceExhausted: the client does not read.
  absl::Status Send(Outbound message);
  absl::Status Flush();
  bool wants_write() const { return !queue_.empty(); }

  // Backpressure: while a large request is received, or replies wait for the
  // client, nothing more is read from it. A connection that ends drops a
  // `request` that is still waiting for its turn.
  void BeginTakingIn(std::shared_ptr<void> request) {
    taking_in_ = std::move(request);
  }
  void EndTakingIn() { taking_in_.reset(); }
  bool held_back() const {
    return taking_in_ != nullptr || wants_write() || hung_up_;
  }
  // The events that epoll watches for. Only the loop uses it.
  uint32_t watched_events = 0;

  // Sends `last` if there is room and hangs up, so that a client that is still
  // sending can read it. With an open session, only hoistd's half is closed:
  // nothing more is sent or read, and the connection lives until the client
  // hangs up too (see SessionLoop::Close).
  void HangUp(Outbound last);
  bool hung_up() const { return hung_up_; }
  // From now on HangUp leaves the first message with descriptors, and all
  // behind it, unread.
  void KeepFds() { keeps_fds_ = true; }

  // Admission control. ResourceExhausted: this session or this uid has too many
  // requests, or descriptors of these, in flight. Else the request counts until
  // Finish.
  absl::Status Admit(size_t fds);
  void Finish(const Ticket& ticket);

  // Adopts a session of the previous hoistd, which is open. Until its client
  // has answered `number`, all that it sent is discarded.
  void BeginResuming(SessionId session, uint64_t number);
  // The version of the session protocol; 0: not known yet. A resumed connection
  // has it from the previous hoistd.
  uint32_t protocol() const { return protocol_; }
  void set_protocol(uint32_t version) { protocol_ = version; }
  void EndResuming() {
    resuming_ = 0;
    resumed_ = true;
  }
  // A resumed session's client may have missed the reply to OpenSession.
  bool resumed() const { return resumed_; }
  int packets_before = 0;  // Received while resuming. Only the loop uses it.
  // The number that the client's answer must have; 0: not resuming.
  uint64_t resuming() const { return resuming_; }
  // Whether the session survives hoistd's end.
  void set_goes_on(bool goes_on) { goes_on_ = goes_on; }
  bool goes_on() const { return goes_on_; }

  void BeginOpening() { phase_ = Phase::kOpening; }
  void FailOpening() { phase_ = Phase::kNew; }
  void FinishOpening(SessionId session);

  Phase phase() const { return phase_; }
  SessionId session() const { return session_; }  // Once kOpen.
  ConnectionId id() const { return id_; }
  const Peer& peer() const { return process_.peer; }
  int socket() const { return socket_.get(); }
  int pidfd() const { return process_.pidfd.get(); }  // -1: none.

 private:
  static size_t CostOf(const Outbound& message);
  void DropQueue();

  const ConnectionId id_;
  const hoist::UniqueFd socket_;
  const PeerProcess process_;
  const ConnectionLimits limits_;
  Phase phase_ = Phase::kNew;
  SessionId session_;
  uint64_t resuming_ = 0;
  bool resumed_ = false;
  uint32_t protocol_ = 0;
  bool goes_on_ = false;
  bool hung_up_ = false;
  std::shared_ptr<void> taking_in_;
  std::deque<Outbound> queue_;
  size_t queued_fds_ = 0;
  bool keeps_fds_ = false;
  Load load_;
  const std::shared_ptr<Load> of_uid_;  // Includes this connection.
};

}  // namespace hoistd

#endif  // HOIST_DAEMON_SESSION_CONNECTION_H_
