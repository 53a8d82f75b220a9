#ifndef HOIST_DAEMON_RPC_CHECK_CALL_H_
#define HOIST_DAEMON_RPC_CHECK_CALL_H_

#include <memory>
#include <string>

#include "daemon/rpc/call_env.h"
#include "daemon/rpc/stream_call.h"
#include "hoist/v1/admin.pb.h"

namespace hoistd {

// Admin.Check: streams progress and findings. A slow reader skips to the newest
// progress. The check continues if the caller leaves.
class CheckCall final : public LatestCall<hoist::v1::CheckProgress> {
 public:
  static std::shared_ptr<CheckCall> Start(std::shared_ptr<CallEnv> env,
                                          absl::StatusOr<AdminAct> act,
                                          std::string model, bool repair);

 private:
  CheckCall() = default;

  void Report(const CheckProgress& progress) ABSL_LOCKS_EXCLUDED(mu_);
};

}  // namespace hoistd

#endif  // HOIST_DAEMON_RPC_CHECK_CALL_H_
