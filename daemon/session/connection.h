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
  // Of all connections of a uid.
  size_t max_outbound_bytes_of_uid = size_t{256} << 20;
  size_t max_in_flight_of_uid = 4096;
  size_t max_in_flight_fds_of_uid = 4096;
};

// What a uid's connections, or one of them, hold of what ConnectionLimits
// bound.
struct Load {
  size_t in_flight = 0;
  size_t in_flight_fds = 0;
  size_t outbound_bytes = 0;
};

// One client's end of the session socket, and how far its session is.
//
// An error from Receive, Send or Flush is the reason why the connection must
// end; there is nothing to retry.
//
// Threads:  the session thread's alone. Never blocks.
// Bounds:   replies that the client does not take in, by ConnectionLimits; one
//           reply of any size is always taken.
class Connection {
 public:
  // kNew: OpenSession must come. kOpening: the engine has it.
  enum class Phase { kNew, kOpening, kOpen };

  // `of_uid` is shared with the uid's other connections.
  Connection(ConnectionId id, hoist::UniqueFd socket, PeerProcess process,
             ConnectionLimits limits, std::shared_ptr<Load> of_uid);
  ~Connection();

  // nullopt: nothing to read now. Cancelled: the client closed it.
  // InvalidArgument, FailedPrecondition: garbage, a protocol version that is
  // not served, or not the one of before.
  // So is a body of more than `max_body` bytes, which is not looked at. One in
  // a memfd stays there.
  absl::StatusOr<std::optional<hoist::Packet>> Receive(uint64_t max_body);

  // Whether the next message has descriptors with it. Takes none of them.
  bool NextBringsFds() const;
  // As Receive, but the message's descriptors are dropped, unseen.
  // nullopt: there is none, or it lies in one of the descriptors.
  std::optional<std::string> ReceiveBody();

  // Sends in order, as much as fits; the rest waits for Flush.
  // ResourceExhausted: the client does not read.
  absl::Status Send(Outbound message);
  absl::Status Flush();
  bool wants_write() const { return !queue_.empty(); }

  // While a large request is taken in, or replies wait for the client, nothing
  // more is read from it.
  // `request` goes with the connection, if that ends before it has its turn.
  void BeginTakingIn(std::shared_ptr<void> request) {
    taking_in_ = std::move(request);
  }
  void EndTakingIn() { taking_in_.reset(); }
  bool held_back() const {
    return taking_in_ != nullptr || wants_write() || hung_up_;
  }
  // What epoll was told last; the loop's to use.
  uint32_t watched_events = 0;

  // Sends `last` if there is room and hangs up, so that a client which is still
  // sending gets to read it. Of a connection with a session this is our half
  // alone: nothing more is said or read, and it lives until the client hangs up
  // too (see SessionLoop::Close).
  void HangUp(Outbound last);
  bool hung_up() const { return hung_up_; }
  // HangUp leaves messages with descriptors unread, and all behind them.
  void KeepFds() { keeps_fds_ = true; }

  // ResourceExhausted: too many requests of this session or this uid, or
  // descriptors with them, wait for their replies. Else the request counts
  // until Finish.
  absl::Status Admit(size_t fds);
  void Finish(const Ticket& ticket);

  // The last hoistd's: it is open, and until its client has answered what this
  // one said to it nothing counts that it had sent before.
  void BeginResuming(SessionId session, uint64_t number);
  // Which version of the session protocol is spoken; 0: not known yet. Told
  // where another hoistd knew it.
  uint32_t protocol() const { return protocol_; }
  void set_protocol(uint32_t version) { protocol_ = version; }
  void EndResuming() {
    resuming_ = 0;
    resumed_ = true;
  }
  // Its client may never have heard that it is open.
  bool resumed() const { return resumed_; }
  int packets_before = 0;  // That were passed over so; the loop's to use.
  // What the answer must name; 0: it goes on, or was never another's.
  uint64_t resuming() const { return resuming_; }
  // Whether the session goes on when hoistd ends.
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
  const std::shared_ptr<Load> of_uid_;  // Its connections', this one's too.
};

}  // namespace hoistd

#endif  // HOIST_DAEMON_SESSION_CONNECTION_H_
