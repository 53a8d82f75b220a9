// Logs the gRPC calls that are refused.
#ifndef HOIST_DAEMON_RPC_REFUSAL_LOG_H_
#define HOIST_DAEMON_RPC_REFUSAL_LOG_H_

#include <memory>

#include "daemon/rpc/call_counts.h"
#include "grpcpp/support/server_interceptor.h"

namespace hoistd {

// Logs each call that ends with an error, whatever refused it. Calls of Worker
// are logged at level info, or debug for an error that workers expect (a model
// that is not registered yet). All others are at level debug: AdminAct logs the
// acts of Admin.
//
// Threads: gRPC's; thread-safe.
std::unique_ptr<grpc::experimental::ServerInterceptorFactoryInterface>
LogRefusals(FindPeer find_peer);

}  // namespace hoistd

#endif  // HOIST_DAEMON_RPC_REFUSAL_LOG_H_
