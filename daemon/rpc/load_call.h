#ifndef HOIST_DAEMON_RPC_LOAD_CALL_H_
#define HOIST_DAEMON_RPC_LOAD_CALL_H_

#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "daemon/rpc/bring_up.h"
#include "daemon/rpc/call_env.h"
#include "daemon/rpc/stream_call.h"
#include "hoist/v1/admin.pb.h"

namespace hoistd {

// Admin.Load: opens, registers and loads a model, and streams its progress. A
// slow reader skips to the newest progress. The load continues if the caller
// leaves.
class LoadCall final : public LatestCall<hoist::v1::LoadProgress> {
 public:
  // A wish that is an error refuses the call.
  static std::shared_ptr<LoadCall> Start(std::shared_ptr<CallEnv> env,
                                         absl::StatusOr<AdminAct> act,
                                         absl::StatusOr<LoadWish> wish);

 private:
  LoadCall(std::shared_ptr<CallEnv> env, std::optional<AdminAct> act)
      : env_(std::move(env)), act_(std::move(act)) {}

  // Ends the act, and the call if its caller is still there.
  void Fail(const absl::Status& why);
  void Report(const LoadProgress& progress) ABSL_LOCKS_EXCLUDED(mu_);
  void Finish(BroughtUp loaded) ABSL_LOCKS_EXCLUDED(mu_);

  const std::shared_ptr<CallEnv> env_;
  const std::optional<AdminAct> act_;  // nullopt: refused.
};

}  // namespace hoistd

#endif  // HOIST_DAEMON_RPC_LOAD_CALL_H_
