// The end of connections.
#include <fcntl.h>
#include <sys/socket.h>

#include <memory>
#include <string>
#include <utility>

#include "daemon/base/one_line.h"
#include "daemon/io_helper/receive_call.h"
#include "daemon/session/session_log.h"
#include "daemon/session/session_loop.h"
#include "spdlog/spdlog.h"

namespace hoistd {

// Closing a connection drops its unread messages, whose descriptors may hang.
// An I/O helper does that. When hoistd stops, the socket is left to the kernel,
// so that hoistd does not wait.
void SessionLoop::DropElsewhere(const Connection& connection) {
  hoist::UniqueFd socket(fcntl(connection.socket(), F_DUPFD_CLOEXEC, 0));
  options_.io_helpers->Post(
      connection.peer().uid, HelperCallKind::kReceive,
      [socket = std::move(socket),
       stopping = stopping_](absl::StatusOr<IoHelper*> run) mutable {
        if (run.ok() && DropByHelper(**run, socket.get()).ok()) return;
        if (*stopping) static_cast<void>(socket.release());
      });
}

void SessionLoop::AskToHangUp(Connection& connection, const absl::Status& why) {
  SPDLOG_INFO(
      "session {} of {} is to end, and does when its client hangs up: "
      "{}",
      connection.session().number(), Describe(connection),
      OneLine(why.message()));
  connection.HangUp(EncodeError(0, why));
  connection.EndTakingIn();
  // If this fails, the pidfd still reports the end of the client's process.
  Rearm(connection).IgnoreError();
}

void SessionLoop::Close(ConnectionId id, const absl::Status& why) {
  const auto found = connections_.find(id);
  Connection& ending = *found->second;
  if (ending.phase() == Connection::Phase::kOpen && !absl::IsCancelled(why) &&
      !*stopping_) {
    return AskToHangUp(ending, why);
  }
  const std::unique_ptr<Connection> connection = std::move(found->second);
  connections_.erase(found);
  silent_.erase(id);
  if (options_.io_helpers != nullptr && connection->NextBringsFds()) {
    DropElsewhere(*connection);
  }
  const std::string reason = OneLine(why.message());
  switch (connection->phase()) {
    case Connection::Phase::kNew:
      SPDLOG_INFO("{} closed without a session: {}", Describe(*connection),
                  reason);
      return;
    case Connection::Phase::kOpening:
      // Deliver closes the session once its id is known.
      --sessions_;
      SPDLOG_INFO("{} closed while its session was opened: {}",
                  Describe(*connection), reason);
      return;
    case Connection::Phase::kOpen:
      // A session that the next hoistd adopts is not closed.
      if (!*stopping_ || !connection->goes_on()) {
        // A keeper may hold the socket open for a while.
        shutdown(connection->socket(), SHUT_RDWR);
        engine_.CloseSession(connection->session());
      }
      --sessions_;
      SPDLOG_INFO("session {} of {} closed: {}", connection->session().number(),
                  Describe(*connection), reason);
      return;
  }
}

void SessionLoop::CloseAll() {
  while (!connections_.empty()) {
    Close(connections_.begin()->first, absl::UnavailableError("hoistd stops"));
  }
  // From here on the engine's callbacks close the sessions that they open.
  for (const Reply& reply : mailbox_->Close()) {
    if (reply.session.has_value()) engine_.CloseSession(*reply.session);
  }
}

}  // namespace hoistd
