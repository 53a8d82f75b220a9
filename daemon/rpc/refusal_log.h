// What the log says of gRPC calls that are refused.
#ifndef HOIST_DAEMON_RPC_REFUSAL_LOG_H_
#define HOIST_DAEMON_RPC_REFUSAL_LOG_H_

#include <memory>

#include "daemon/rpc/call_counts.h"
#include "grpcpp/support/server_interceptor.h"

namespace hoistd {

// A line for each call whose answer is an error, whatever refused it: of the
// Worker service at the level info, or debug where a worker may count on it (a
// model that nobody has brought yet); of Admin at the level debug, as its acts
// are in the log by themselves (AdminAct).
//
// Threads: gRPC's; thread-safe.
std::unique_ptr<grpc::experimental::ServerInterceptorFactoryInterface>
LogRefusals(FindPeer find_peer);

}  // namespace hoistd

#endif  // HOIST_DAEMON_RPC_REFUSAL_LOG_H_
