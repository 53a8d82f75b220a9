// Sessions of the last hoistd, which go on over their sockets.
#include <fcntl.h>

#include <utility>

#include "absl/strings/str_cat.h"
#include "daemon/base/status.h"
#include "daemon/session/session_loop.h"
#include "hoist/v1/session.pb.h"
#include "spdlog/spdlog.h"

namespace hoistd {
namespace {

// Requests that a client had sent to the last hoistd are no more than it may
// have under way, and some that nobody answers. What is more is no client that
// goes on, and costs our time.
constexpr int kMostBefore = 8192;
// An answer that names more leases than fit into this is no worker's.
constexpr uint64_t kLargestAnswer = uint64_t{4} << 20;

}  // namespace

// Its last word has room, or nobody reads there.
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
  // It is gone, which epoll tells next; or the last hoistd had told it to end,
  // and it still uses what it has.
  if (!sent.ok()) Close(id, sent);
}

absl::Status SessionLoop::SendOpened(Connection& connection, uint64_t request) {
  return Send(connection, EncodeOpened(request, connection.session(),
                                       engine_.facts(), options_.instance_id));
}

// Its client had sent it to the last hoistd, and sends it again if it still
// wants it; but for the answer, which comes behind all that.
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
