#ifndef HOIST_DAEMON_RPC_STAGE_CALL_H_
#define HOIST_DAEMON_RPC_STAGE_CALL_H_

#include <memory>
#include <string>

#include "absl/time/time.h"
#include "daemon/rpc/call_env.h"
#include "daemon/rpc/stream_call.h"
#include "hoist/v1/worker.pb.h"

namespace hoistd {

struct StageWish {
  std::string model;
  std::string group;
  DeviceIndex device;
  absl::Duration deadline;
};

// Worker.Stage: holds a lease, in an engine session of its own, while the
// stream is open. Any end of the stream closes the session and its lease.
class StageCall final : public LatestCall<hoist::v1::WorkerStageResponse> {
 public:
  static std::shared_ptr<StageCall> Start(std::shared_ptr<CallEnv> env,
                                          Peer peer, StageWish wish);
  // Refuses the call at once.
  static std::shared_ptr<StageCall> Refuse(const absl::Status& status);

 private:
  StageCall(std::shared_ptr<CallEnv> env, StageWish wish)
      : env_(std::move(env)), wish_(std::move(wish)) {}

  // The steps, each on the engine's thread.
  static void Opened(std::shared_ptr<StageCall> self, CallSession session);
  static void Described(std::shared_ptr<StageCall> self, SessionId session,
                        ModelPtr model);
  static void Granted(std::shared_ptr<StageCall> self, LeaseGrant grant,
                      std::shared_ptr<const Group> group, GroupIndex index);

  void OnGone() override ABSL_LOCKS_EXCLUDED(mu_);

  const std::shared_ptr<CallEnv> env_;
  const StageWish wish_;
  CallSession session_ ABSL_GUARDED_BY(mu_);
};

}  // namespace hoistd

#endif  // HOIST_DAEMON_RPC_STAGE_CALL_H_
