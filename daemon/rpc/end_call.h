#ifndef HOIST_DAEMON_RPC_END_CALL_H_
#define HOIST_DAEMON_RPC_END_CALL_H_

#include "absl/status/statusor.h"
#include "absl/time/time.h"
#include "daemon/rpc/audit.h"
#include "daemon/rpc/call_env.h"
#include "daemon/types/ids.h"
#include "grpcpp/support/server_callback.h"
#include "hoist/v1/admin.pb.h"

namespace hoistd {

// Admin.EndSession: tells the session to end. Answers when its client has let
// go, or the deadline has passed; the session stays told either way.
grpc::ServerUnaryReactor* StartEndCall(CallEnv& env,
                                       absl::StatusOr<AdminAct> act,
                                       SessionId session,
                                       absl::Duration deadline,
                                       hoist::v1::EndSessionResponse* response);

}  // namespace hoistd

#endif  // HOIST_DAEMON_RPC_END_CALL_H_
