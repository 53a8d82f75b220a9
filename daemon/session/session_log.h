// What the log says of a connection's requests.
#ifndef HOIST_DAEMON_SESSION_SESSION_LOG_H_
#define HOIST_DAEMON_SESSION_SESSION_LOG_H_

#include <cstdint>
#include <string>

#include "absl/status/status.h"
#include "daemon/session/connection.h"
#include "daemon/session/reply.h"

namespace hoist::v1 {
class ClientMessage;
}  // namespace hoist::v1

namespace hoistd {

// "pid 71 uid 1000".
std::string Describe(const Connection& connection);

// A request came; at the level debug.
void LogRequest(const Connection& connection, const Ticket& ticket,
                const hoist::v1::ClientMessage& message);

// A request is not served: each once, by whoever answers it. At the level info;
// what a worker may count on (a model that nobody has brought yet, a wait that
// it gave up) at the level debug.
void LogRefusal(const Connection& connection, uint64_t request,
                const absl::Status& why);

}  // namespace hoistd

#endif  // HOIST_DAEMON_SESSION_SESSION_LOG_H_
