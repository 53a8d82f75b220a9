#include "daemon/session/session_loop.h"

#include <fcntl.h>
#include <sys/socket.h>

#include <algorithm>
#include <cerrno>
#include <string>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "daemon/base/one_line.h"
#include "daemon/base/status.h"
#include "daemon/io_helper/receive_call.h"
#include "daemon/session/large_request.h"
#include "daemon/session/session_log.h"
#include "daemon/socket/peer_process.h"
#include "hoist/v1/session.pb.h"
#include "spdlog/spdlog.h"

namespace hoistd {
namespace {

// Keys of epoll events: these two, then a pair per connection.
constexpr uint64_t kListenKey = 0;
constexpr uint64_t kMailboxKey = 1;
uint64_t SocketKey(ConnectionId id) { return id.number() * 2; }
uint64_t PidfdKey(ConnectionId id) { return id.number() * 2 + 1; }

constexpr uint32_t kGoneEvents = EPOLLHUP | EPOLLRDHUP | EPOLLERR;

// Packets of one client in a row, before other clients get their turn.
constexpr int kPacketsPerTurn = 16;
// Threads for requests in a memfd. Each may take some 0.4 s and, parsed,
// hundreds of MiB.
constexpr int kWorkers = 2;
// The interval of accept's retries while hoistd is out of descriptors.
constexpr int kAcceptRetryMs = 100;

absl::Status TooManySessions(size_t limit) {
  return absl::ResourceExhaustedError(
      absl::StrCat("hoistd has ", limit,
                   " sessions, its limit; close one, or raise "
                   "server.max_sessions in hoistd.toml"));
}

bool IsGarbage(const absl::Status& status) {
  return absl::IsInvalidArgument(status) || absl::IsFailedPrecondition(status);
}

// Always watches for the client's end; else it would be missed while the
// connection is held back.
uint32_t EventsOf(const Connection& connection) {
  uint32_t events = EPOLLRDHUP;
  if (!connection.held_back()) events |= EPOLLIN;
  if (connection.wants_write()) events |= EPOLLOUT;
  return events;
}

}  // namespace

absl::StatusOr<std::unique_ptr<SessionLoop>> SessionLoop::Create(
    SessionServerOptions options, EngineApi& engine) {
  HOIST_ASSIGN_OR_RETURN(
      ListeningSocket listening,
      options.listen_fd.valid()
          ? ListeningSocket::Adopt(std::move(options.listen_fd))
          : ListeningSocket::Create(options.socket));
  HOIST_ASSIGN_OR_RETURN(Acceptor acceptor,
                         Acceptor::Create(std::move(listening)));
  HOIST_ASSIGN_OR_RETURN(Poller poller, Poller::Create());
  HOIST_ASSIGN_OR_RETURN(std::shared_ptr<Mailbox> mailbox, Mailbox::Create());
  std::unique_ptr<SessionLoop> loop(
      new SessionLoop(std::move(options), engine, std::move(mailbox),
                      std::move(acceptor), std::move(poller)));
  HOIST_RETURN_IF_ERROR(loop->Start());
  return loop;
}

SessionLoop::SessionLoop(SessionServerOptions options, EngineApi& engine,
                         std::shared_ptr<Mailbox> mailbox, Acceptor acceptor,
                         Poller poller)
    : options_(std::move(options)),
      engine_(engine),
      mailbox_(std::move(mailbox)),
      acceptor_(std::move(acceptor)),
      poller_(std::move(poller)),
      router_(engine, mailbox_) {}

absl::Status SessionLoop::Start() {
  HOIST_RETURN_IF_ERROR(workers_.Start(kWorkers));
  HOIST_RETURN_IF_ERROR(poller_.Add(acceptor_.fd(), EPOLLIN, kListenKey));
  HOIST_RETURN_IF_ERROR(poller_.Add(mailbox_->fd(), EPOLLIN, kMailboxKey));
  // Clears the list: its sockets must close when their sessions end.
  for (const ResumedSession& session : std::exchange(options_.resumed, {})) {
    Resume(session);
  }
  return absl::OkStatus();
}

void SessionLoop::Stop() {
  *stopping_ = true;
  mailbox_->Wake();
}

void SessionLoop::Run() {
  while (!*stopping_) {
    const bool paused = !accepting_;
    for (const epoll_event& event : poller_.Wait(WaitMs())) {
      OnEvent(event.data.u64, event.events);
    }
    EndSilentOnes();
    if (paused && poller_.Change(acceptor_.fd(), EPOLLIN, kListenKey).ok()) {
      accepting_ = true;
    }
  }
  workers_.Stop();
  CloseAll();
}

absl::Time SessionLoop::Now() const {
  return options_.clock != nullptr ? options_.clock->Now()
                                   : machine_clock_.Now();
}

// The time until the next deadline, for epoll; -1: none.
int SessionLoop::WaitMs() const {
  absl::Duration wait = absl::InfiniteDuration();
  if (!accepting_) wait = absl::Milliseconds(kAcceptRetryMs);
  for (const auto& [id, since] : silent_) {
    wait = std::min(wait, since + options_.silent.deadline - Now());
  }
  if (wait == absl::InfiniteDuration()) return -1;
  const int64_t ms = absl::ToInt64Milliseconds(wait) + 1;  // Not too early.
  return static_cast<int>(std::clamp<int64_t>(ms, 0, 60'000));
}

void SessionLoop::OnEvent(uint64_t key, uint32_t events) {
  if (key == kListenKey) return AcceptAll();
  if (key == kMailboxKey) return DeliverReplies();
  const ConnectionId id(key / 2);
  const auto found = connections_.find(id);
  if (found == connections_.end()) return;  // Closed after epoll returned.
  Connection& connection = *found->second;
  const absl::Status status =
      key == PidfdKey(id)
          ? absl::CancelledError("the process that connected is dead")
          : Serve(connection, events);
  if (!status.ok()) Close(id, status);
}

void SessionLoop::AcceptAll() {
  for (int i = 0; i < kPacketsPerTurn; ++i) {
    auto [outcome, socket] = acceptor_.Accept();
    switch (outcome) {
      case Acceptor::Outcome::kAccepted:
        Welcome(std::move(socket));
        break;
      case Acceptor::Outcome::kNoRoom:
        SPDLOG_WARN("a client is turned away: hoistd is out of descriptors");
        Connection(ConnectionId(), std::move(socket), {}, options_.connection,
                   std::make_shared<Load>())
            .HangUp(EncodeError(
                0, absl::ResourceExhaustedError(
                       "hoistd is out of file descriptors; close sessions, or "
                       "raise its LimitNOFILE")));
        acceptor_.Restock();
        break;
      case Acceptor::Outcome::kNothing:
        return;
      case Acceptor::Outcome::kExhausted:
        // The listening socket is level-triggered, so the loop would spin.
        if (poller_.Change(acceptor_.fd(), 0, kListenKey).ok()) {
          accepting_ = false;
        }
        acceptor_.Restock();
        return;
    }
  }
}

void SessionLoop::Welcome(hoist::UniqueFd socket) {
  absl::StatusOr<PeerProcess> process =
      PeerOf(socket.get(), options_.admin_group, options_.tenant);
  if (!process.ok()) {
    SPDLOG_INFO("a connection is refused: {}", process.status().ToString());
    Connection(ConnectionId(), std::move(socket), {}, options_.connection,
               std::make_shared<Load>())
        .HangUp(EncodeError(0, process.status()));
    return;
  }
  MakeRoomFor(process->peer.uid);
  const ConnectionId id(next_id_++);
  std::shared_ptr<Load> load = LoadOf(process->peer.uid);
  auto connection =
      std::make_unique<Connection>(id, std::move(socket), *std::move(process),
                                   options_.connection, std::move(load));
  if (absl::Status status = Watch(*connection); !status.ok()) {
    SPDLOG_WARN("{} is turned away: {}", Describe(*connection),
                status.ToString());
    connection->HangUp(EncodeError(0, status));
    return;
  }
  if (options_.io_helpers != nullptr) connection->KeepFds();
  connections_.emplace(id, std::move(connection));
  silent_.emplace(id, Now());
}

std::shared_ptr<Load> SessionLoop::LoadOf(User uid) {
  std::erase_if(loads_, [](const auto& of) { return of.second.expired(); });
  std::weak_ptr<Load>& known = loads_[uid];
  std::shared_ptr<Load> load = known.lock();
  if (load == nullptr) known = load = std::make_shared<Load>();
  return load;
}

void SessionLoop::TurnAway(ConnectionId id, const absl::Status& why) {
  connections_.at(id)->HangUp(EncodeError(0, why));
  Close(id, why);
}

void SessionLoop::MakeRoomFor(User newcomer) {
  std::map<User, size_t> of_uid;
  for (const auto& [id, since] : silent_) {
    ++of_uid[connections_.at(id)->peer().uid];
  }
  User most = newcomer;
  if (of_uid[newcomer] < options_.silent.of_uid) {
    if (silent_.size() < options_.silent.all) return;
    for (const auto& [uid, count] : of_uid) {
      if (count > of_uid[most]) most = uid;
    }
  }
  const auto oldest =
      std::find_if(silent_.begin(), silent_.end(), [&](const auto& connection) {
        return connections_.at(connection.first)->peer().uid == most;
      });
  // The newcomer has none, and nobody else has more: the limit is zero.
  if (oldest == silent_.end()) return;
  TurnAway(oldest->first,
           absl::ResourceExhaustedError(absl::StrCat(
               ToString(most), " has ", of_uid[most],
               " connections on which no session was opened, and another came; "
               "send OpenSession right after connecting")));
}

void SessionLoop::EndSilentOnes() {
  const absl::Time until = Now() - options_.silent.deadline;
  std::vector<ConnectionId> late;
  for (const auto& [id, since] : silent_) {
    if (since <= until) late.push_back(id);
  }
  for (const ConnectionId id : late) {
    TurnAway(id, absl::DeadlineExceededError(absl::StrCat(
                     "no session was opened within ",
                     absl::FormatDuration(options_.silent.deadline),
                     " of connecting; connect again")));
  }
}

absl::Status SessionLoop::Watch(Connection& connection) {
  connection.watched_events = EventsOf(connection);
  HOIST_RETURN_IF_ERROR(poller_.Add(connection.socket(),
                                    connection.watched_events,
                                    SocketKey(connection.id())));
  if (connection.pidfd() < 0) return absl::OkStatus();
  return poller_.Add(connection.pidfd(), EPOLLIN, PidfdKey(connection.id()));
}

absl::Status SessionLoop::Rearm(Connection& connection) {
  const uint32_t events = EventsOf(connection);
  if (events == connection.watched_events) return absl::OkStatus();
  connection.watched_events = events;
  return poller_.Change(connection.socket(), events,
                        SocketKey(connection.id()));
}

absl::Status SessionLoop::Serve(Connection& connection, uint32_t events) {
  // Packets that a client sent before it left are ignored. Its session is over,
  // and the kernel closes the descriptors in flight.
  if ((events & kGoneEvents) != 0) {
    return absl::CancelledError("the client closed the connection");
  }
  if ((events & EPOLLOUT) != 0) {
    HOIST_RETURN_IF_ERROR(connection.Flush());
    HOIST_RETURN_IF_ERROR(Rearm(connection));
  }
  if ((events & EPOLLIN) != 0) return ReceiveSome(connection);
  return absl::OkStatus();
}

absl::Status SessionLoop::ReceiveSome(Connection& connection) {
  for (int i = 0; i < kPacketsPerTurn && !connection.held_back(); ++i) {
    if (options_.io_helpers != nullptr && connection.NextBringsFds()) {
      HOIST_RETURN_IF_ERROR(ReceiveElsewhere(connection));
      continue;
    }
    absl::StatusOr<std::optional<hoist::Packet>> packet =
        connection.Receive(options_.max_request_bytes);
    if (!packet.ok()) {
      if (IsGarbage(packet.status())) {
        connection.HangUp(EncodeError(0, packet.status()));
      }
      return packet.status();
    }
    if (!packet->has_value()) return absl::OkStatus();
    HOIST_RETURN_IF_ERROR(OnPacket(connection, **std::move(packet)));
  }
  return absl::OkStatus();
}

absl::Status SessionLoop::ReceiveElsewhere(Connection& connection) {
  if (connection.phase() != Connection::Phase::kOpen) {
    const absl::Status early = absl::InvalidArgumentError(
        "OpenSession takes no descriptors; requests that do come after its "
        "reply");
    connection.HangUp(EncodeError(0, early));
    return early;
  }
  hoist::UniqueFd socket(fcntl(connection.socket(), F_DUPFD_CLOEXEC, 0));
  if (!socket.valid()) {
    return RefuseNext(connection, ErrnoToStatus(errno, "receive descriptors"));
  }
  connection.BeginTakingIn(std::make_shared<bool>());
  options_.io_helpers->Post(
      connection.peer().uid, HelperCallKind::kReceive,
      [mailbox = mailbox_, id = connection.id(), socket = std::move(socket),
       max_body = options_.max_request_bytes](absl::StatusOr<IoHelper*> run) {
        Reply reply;
        reply.ticket.connection = id;
        reply.taken_in = std::make_unique<TakenIn>();
        reply.taken_in->refused = run.status();
        if (run.ok()) {
          reply.taken_in->packet =
              ReceiveByHelper(**run, socket.get(), max_body);
        }
        mailbox->Post(std::move(reply));
      });
  return Rearm(connection);
}

absl::Status SessionLoop::TakeIn(Connection& connection, TakenIn taken) {
  connection.EndTakingIn();
  HOIST_RETURN_IF_ERROR(Rearm(connection));
  if (!taken.refused.ok()) return RefuseNext(connection, taken.refused);
  if (!taken.packet.ok()) {
    connection.HangUp(EncodeError(0, taken.packet.status()));
    return taken.packet.status();
  }
  if (!taken.packet->has_value()) return absl::OkStatus();
  return OnPacket(connection, **std::move(taken.packet));
}

absl::Status SessionLoop::RefuseNext(Connection& connection,
                                     const absl::Status& why) {
  const std::optional<std::string> body = connection.ReceiveBody();
  hoist::v1::ClientMessage message;
  if (body.has_value() && message.ParseFromString(*body)) {
    LogRefusal(connection, message.request_id(), why);
    return Send(connection, EncodeError(message.request_id(), why));
  }
  connection.HangUp(EncodeError(0, why));
  return why;
}

absl::Status SessionLoop::OnPacket(Connection& connection,
                                   hoist::Packet packet) {
  if (connection.resuming() != 0) {
    return OnPacketBefore(connection, std::move(packet));
  }
  if (packet.sealed.has_value()) {
    return OnLargePacket(connection, std::move(packet));
  }
  hoist::v1::ClientMessage message;
  if (!message.ParseFromString(packet.body)) {
    const absl::Status garbage =
        absl::InvalidArgumentError("the body is not a hoist.v1.ClientMessage");
    connection.HangUp(EncodeError(0, garbage));
    return garbage;
  }
  const Ticket ticket = {connection.id(), message.request_id(),
                         packet.fds.size()};
  LogRequest(connection, ticket, message);
  const absl::Status status =
      Dispatch(connection, ticket, message, std::move(packet.fds));
  if (status.ok()) return absl::OkStatus();
  LogRefusal(connection, ticket.request_id, status);
  return Send(connection, EncodeError(ticket.request_id, status));
}

// A worker reads, parses and routes the request. Meanwhile nothing more is read
// from this client, so requests keep their order, and at most one waits per
// connection.
absl::Status SessionLoop::OnLargePacket(Connection& connection,
                                        hoist::Packet packet) {
  if (connection.phase() != Connection::Phase::kOpen) {
    const absl::Status early = absl::FailedPreconditionError(
        "OpenSession and its reply come before any request in a memfd");
    connection.HangUp(EncodeError(0, early));
    return early;
  }
  auto request = std::make_shared<LargeRequest>();
  request->ticket = {connection.id(), 0, packet.fds.size()};
  request->session = connection.session();
  request->admitted = connection.Admit(packet.fds.size());
  request->ticket.admitted = request->admitted.ok();
  request->body = *std::move(packet.sealed);
  request->fds = std::move(packet.fds);
  connection.BeginTakingIn(request);
  std::weak_ptr<LargeRequest> waits = request;
  workers_.Post(connection.peer().uid, [this, waits = std::move(waits)] {
    const std::shared_ptr<LargeRequest> still = waits.lock();
    if (still != nullptr) ServeLarge(std::move(*still), router_, *mailbox_);
  });
  return Rearm(connection);
}

absl::Status SessionLoop::Dispatch(Connection& connection, const Ticket& ticket,
                                   const hoist::v1::ClientMessage& message,
                                   std::vector<hoist::UniqueFd> fds) {
  if (connection.phase() == Connection::Phase::kNew) {
    return DispatchOpen(connection, ticket, message);
  }
  if (connection.phase() == Connection::Phase::kOpening) {
    return absl::FailedPreconditionError(
        "the session is being opened; wait for OpenSession's reply");
  }
  // The previous hoistd opened the session, and died before it replied.
  if (message.has_open_session() && connection.resumed()) {
    return SendOpened(connection, ticket.request_id);
  }
  HOIST_RETURN_IF_ERROR(connection.Admit(ticket.fds));
  const absl::Status status =
      router_.Route(ticket, connection.session(), message, std::move(fds));
  if (!status.ok()) connection.Finish(ticket);
  return status;
}

absl::Status SessionLoop::DispatchOpen(
    Connection& connection, const Ticket& ticket,
    const hoist::v1::ClientMessage& message) {
  if (!message.has_open_session()) {
    return absl::FailedPreconditionError(
        "OpenSession must be the first request of a connection");
  }
  if (ticket.fds != 0) {
    return absl::InvalidArgumentError("OpenSession takes no descriptors");
  }
  if (sessions_ >= options_.max_sessions) {
    return TooManySessions(options_.max_sessions);
  }
  HOIST_RETURN_IF_ERROR(connection.Admit(0));
  // Before Open, since the engine might answer before that returns.
  connection.BeginOpening();
  silent_.erase(connection.id());
  ++sessions_;
  std::shared_ptr<hoist::UniqueFd> socket;
  const bool goes_on =
      hoist::ServiceFor(connection.protocol()) == hoist::Service::kGoesOn;
  if (options_.keeps && goes_on && message.open_session().resumes()) {
    socket = std::make_shared<hoist::UniqueFd>(
        fcntl(connection.socket(), F_DUPFD_CLOEXEC, 0));
    if (!socket->valid()) socket = nullptr;
    connection.set_goes_on(socket != nullptr);
  }
  const absl::Status status =
      router_.Open(ticket, message.open_session(), connection.peer(),
                   std::move(socket), connection.protocol());
  if (!status.ok()) {
    connection.FailOpening();
    silent_.emplace(connection.id(), Now());
    connection.Finish(ticket);
    --sessions_;
  }
  return status;
}

absl::Status SessionLoop::Send(Connection& connection, Outbound message) {
  HOIST_RETURN_IF_ERROR(connection.Send(std::move(message)));
  return Rearm(connection);
}

void SessionLoop::DeliverReplies() {
  for (Reply& reply : mailbox_->TakeAll()) Deliver(std::move(reply));
}

void SessionLoop::Deliver(Reply reply) {
  const ConnectionId id = reply.ticket.connection;
  const auto found = connections_.find(id);
  if (found == connections_.end()) {
    // The client left before its session was open, so close it here.
    if (reply.session.has_value()) engine_.CloseSession(*reply.session);
    return;
  }
  Connection& connection = *found->second;
  if (connection.hung_up()) return;  // Nothing more can be sent.
  if (reply.taken_in != nullptr) {
    absl::Status s = TakeIn(connection, std::move(*reply.taken_in));
    return s.ok() ? void() : Close(id, s);
  }
  if (reply.read_on) {
    connection.EndTakingIn();
    if (absl::Status s = Rearm(connection); !s.ok()) return Close(id, s);
  }
  if (!reply.answers) return;
  if (reply.ticket.admitted) connection.Finish(reply.ticket);
  if (reply.fatal) {
    const absl::Status why = reply.status;
    connection.HangUp(EncodeReply(std::move(reply)));
    return Close(id, why);
  }
  if (!reply.status.ok()) {
    LogRefusal(connection, reply.ticket.request_id, reply.status);
  }
  const absl::Status status =
      connection.phase() == Connection::Phase::kOpening
          ? DeliverOpened(connection, reply)
          : Send(connection, EncodeReply(std::move(reply)));
  if (!status.ok()) Close(id, status);
}

absl::Status SessionLoop::DeliverOpened(Connection& connection,
                                        const Reply& reply) {
  const uint64_t request = reply.ticket.request_id;
  if (!reply.status.ok()) {
    connection.FailOpening();
    silent_.emplace(connection.id(), Now());
    --sessions_;
    return Send(connection, EncodeError(request, reply.status));
  }
  const SessionId session = reply.session.value();
  connection.FinishOpening(session);
  SPDLOG_INFO("session {} opened by {}{}", session.number(),
              Describe(connection),
              connection.peer().admin ? ", an admin" : "");
  return SendOpened(connection, request);
}

}  // namespace hoistd
