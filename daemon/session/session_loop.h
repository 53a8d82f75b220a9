#ifndef HOIST_DAEMON_SESSION_SESSION_LOOP_H_
#define HOIST_DAEMON_SESSION_SESSION_LOOP_H_

#include <atomic>
#include <cstddef>
#include <cstdint>
#include <map>
#include <memory>

#include "absl/container/flat_hash_map.h"
#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/time/time.h"
#include "daemon/base/clock.h"
#include "daemon/session/connection.h"
#include "daemon/session/fair_workers.h"
#include "daemon/session/mailbox.h"
#include "daemon/session/session_server.h"
#include "daemon/session/verb_router.h"
#include "daemon/socket/acceptor.h"
#include "daemon/socket/poller.h"

namespace hoistd {

// The event loop of the session thread, which serves all connections.
//
// Threads:  Run on the session thread, which alone accesses the fields; Stop
//           from any.
class SessionLoop {
 public:
  static absl::StatusOr<std::unique_ptr<SessionLoop>> Create(
      SessionServerOptions options, EngineApi& engine);

  // Serves until Stop; then closes all sessions.
  void Run();
  void Stop();

 private:
  SessionLoop(SessionServerOptions options, EngineApi& engine,
              std::shared_ptr<Mailbox> mailbox, Acceptor acceptor,
              Poller poller);

  absl::Status Start();
  void Resume(const ResumedSession& session);
  void Refuse(const ResumedSession& session);
  // Handles a packet of a client that has not answered Resumed yet.
  absl::Status OnPacketBefore(Connection& connection, hoist::Packet packet);
  void OnEvent(uint64_t key, uint32_t events);

  void AcceptAll();
  void Welcome(hoist::UniqueFd socket);
  std::shared_ptr<Load> LoadOf(User uid);
  // Tells the client why, and closes the connection.
  void TurnAway(ConnectionId id, const absl::Status& why);
  // Evicts a connection without a session, if there are too many of these.
  void MakeRoomFor(User newcomer);
  void EndSilentOnes();
  int WaitMs() const;
  absl::Time Now() const;
  absl::Status Watch(Connection& connection);
  // Updates the events that epoll watches for.
  absl::Status Rearm(Connection& connection);

  // An error is the reason to end the connection.
  absl::Status Serve(Connection& connection, uint32_t events);
  absl::Status ReceiveSome(Connection& connection);
  // An I/O helper receives the next message, and TakeIn gets it.
  absl::Status ReceiveElsewhere(Connection& connection);
  absl::Status TakeIn(Connection& connection, TakenIn taken);
  // Drops the next message's descriptors, and tells the client why.
  absl::Status RefuseNext(Connection& connection, const absl::Status& why);
  absl::Status OnPacket(Connection& connection, hoist::Packet packet);
  absl::Status OnLargePacket(Connection& connection, hoist::Packet packet);
  // OK: the engine will answer. Else the client gets the error, and may go on.
  absl::Status Dispatch(Connection& connection, const Ticket& ticket,
                        const hoist::v1::ClientMessage& message,
                        std::vector<hoist::UniqueFd> fds);
  absl::Status DispatchOpen(Connection& connection, const Ticket& ticket,
                            const hoist::v1::ClientMessage& message);
  absl::Status Send(Connection& connection, Outbound message);

  void DeliverReplies();
  void Deliver(Reply reply);
  absl::Status DeliverOpened(Connection& connection, const Reply& reply);
  absl::Status SendOpened(Connection& connection, uint64_t request);

  void DropElsewhere(const Connection& connection);
  // Ends the connection. `why` is Cancelled if the client hung up or is dead.
  // Otherwise the session lives until the client hangs up, too, or dies: it may
  // still compute with its mapped memory.
  void Close(ConnectionId id, const absl::Status& why);
  void AskToHangUp(Connection& connection, const absl::Status& why);
  void CloseAll();

  SessionServerOptions options_;
  EngineApi& engine_;
  const std::shared_ptr<Mailbox> mailbox_;
  const MonotonicClock machine_clock_;
  // Shared with DropElsewhere's callbacks, which may outlast this object.
  const std::shared_ptr<std::atomic<bool>> stopping_ =
      std::make_shared<std::atomic<bool>>(false);

  Acceptor acceptor_;
  Poller poller_;
  VerbRouter router_;  // The workers use it, too.
  FairWorkers workers_;
  bool accepting_ = true;
  uint64_t next_id_ = 1;
  size_t sessions_ = 0;  // Opening or open.
  // Connections without a session, oldest first, and their start times.
  std::map<ConnectionId, absl::Time> silent_;
  absl::flat_hash_map<ConnectionId, std::unique_ptr<Connection>> connections_;
  // Owned by the uid's connections; gone with the last of them.
  std::map<User, std::weak_ptr<Load>> loads_;
};

}  // namespace hoistd

#endif  // HOIST_DAEMON_SESSION_SESSION_LOOP_H_
