// Logs a connection's requests.
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

// Logs a request's arrival, at level debug.
void LogRequest(const Connection& connection, const Ticket& ticket,
                const hoist::v1::ClientMessage& message);

// Logs a refused request. The code that answers it calls this once. Level info,
// or debug for errors that workers expect: a model that is not registered yet,
// a wait that the worker gave up.
void LogRefusal(const Connection& connection, uint64_t request,
                const absl::Status& why);

}  // namespace hoistd

#endif  // HOIST_DAEMON_SESSION_SESSION_LOG_H_
