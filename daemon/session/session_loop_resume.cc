// Adopts the sessions of the previous hoistd, on the same sockets.
#include <fcntl.h>

#include <utility>

#include "absl/strings/str_cat.h"
#include "daemon/base/status.h"
#include "daemon/session/session_loop.h"
#include "hoist/v1/session.pb.h"
#include "spdlog/spdlog.h"

namespace hoistd {
namespace {

// The packets that a client may have sent to the previous hoistd: its limit of
// requests in flight, and some that have no reply. A client that sends more is
// not resuming, and costs hoistd time.
constexpr int kMostBefore = 8192;
// A real worker's answer, with all its leases, fits into this.
constexpr uint64_t kLargestAnswer = uint64_t{4} << 20;

}  // namespace

// HangUp's message fits the socket's buffer, unless the client does not read.
void SessionLoop::Refuse(const ResumedSession& session) {
  SPDLOG_INFO("session {} does not go on: {}", session.id.number(),
              session.ended.ToString());
  hoist::UniqueFd socket(fcntl(session.socket->get(), F_DUPFD_CLOEXEC, 0));
  if (!socket.valid()) return;
  Connection connection(ConnectionId(), std::move(socket), {},
                        options_.connection, std::make_shared<Load>());
  if (options_.io_helpers != nullptr) connection.KeepFds();
  connection.set_protocol(session.protocol);
  connection.HangUp(EncodeError(0, session.ended));
}

void SessionLoop::Resume(const ResumedSession& session) {
  if (!session.ended.ok()) return Refuse(session);
  const auto end = [&](const absl::Status& why) {
    SPDLOG_INFO("session {} does not go on: {}", session.id.number(),
                why.ToString());
    engine_.CloseSession(session.id);
  };
  hoist::UniqueFd socket(fcntl(session.socket->get(), F_DUPFD_CLOEXEC, 0));
  if (!socket.valid()) return end(ErrnoToStatus(errno, "take its socket"));
  absl::StatusOr<PeerProcess> process =
      PeerOf(socket.get(), options_.admin_group, options_.tenant);
  if (!process.ok()) return end(process.status());
  const ConnectionId id(next_id_++);
  std::shared_ptr<Load> load = LoadOf(process->peer.uid);
  auto connection =
      std::make_unique<Connection>(id, std::move(socket), *std::move(process),
                                   options_.connection, std::move(load));
  if (absl::Status s = Watch(*connection); !s.ok()) return end(s);
  if (options_.io_helpers != nullptr) connection->KeepFds();
  connection->set_protocol(session.protocol);
  connection->BeginResuming(session.id, options_.generation);
  const absl::Status sent =
      Send(*connection, EncodeResumed(options_.generation));
  ++sessions_;
  connections_.emplace(id, std::move(connection));
  // Either the client is gone, which epoll reports next; or the previous hoistd
  // had told it to end, and it still uses its memory.
  if (!sent.ok()) Close(id, sent);
}

absl::Status SessionLoop::SendOpened(Connection& connection, uint64_t request) {
  return Send(connection, EncodeOpened(request, connection.session(),
                                       engine_.facts(), options_.instance_id));
}

// Discards requests to the previous hoistd; the client repeats those that it
// still needs. The answer to Resumed comes behind them.
absl::Status SessionLoop::OnPacketBefore(Connection& connection,
                                         hoist::Packet packet) {
  if (++connection.packets_before > kMostBefore) {
    return absl::ResourceExhaustedError(
        "the client does not answer that its session goes on");
  }
  std::string body = std::move(packet.body);
  if (packet.sealed.has_value()) {
    if (packet.sealed->bytes > kLargestAnswer) return absl::OkStatus();
    hoist::Result<std::string> read = hoist::ReadSealedBody(*packet.sealed);
    if (!read.ok()) return ToAbsl(read.status());
    body = std::move(read).value();
  }
  hoist::v1::ClientMessage message;
  if (!message.ParseFromString(body) || !message.has_resume() ||
      message.resume().number() != connection.resuming()) {
    return absl::OkStatus();
  }
  const Ticket ticket = {connection.id(), message.request_id(), 0};
  HOIST_RETURN_IF_ERROR(connection.Admit(0));
  connection.EndResuming();
  SPDLOG_INFO("session {} goes on", connection.session().number());
  router_.Resume(ticket, connection.session(), message.resume());
  return absl::OkStatus();
}

}  // namespace hoistd
