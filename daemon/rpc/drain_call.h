#ifndef HOIST_DAEMON_RPC_DRAIN_CALL_H_
#define HOIST_DAEMON_RPC_DRAIN_CALL_H_

#include <memory>
#include <string>

#include "absl/time/time.h"
#include "daemon/rpc/call_env.h"
#include "daemon/rpc/stream_call.h"
#include "grpcpp/alarm.h"
#include "hoist/v1/admin.pb.h"

namespace hoistd {

struct DrainWish {
  absl::Duration deadline;
  bool resume = false;
};

// Admin.Drain: closes the node to new work, then polls the leases every 100 ms.
// Reports their holders whenever these have changed, until none is left. The
// node stays closed when the deadline passes or the caller leaves.
class DrainCall final : public LatestCall<hoist::v1::DrainProgress> {
 public:
  static std::shared_ptr<DrainCall> Start(std::shared_ptr<CallEnv> env,
                                          absl::StatusOr<AdminAct> act,
                                          DrainWish wish);

 private:
  DrainCall(std::shared_ptr<CallEnv> env, DrainWish wish);

  static void Look(std::shared_ptr<DrainCall> self);
  static void Saw(std::shared_ptr<DrainCall> self, const NodeView& view);
  // Schedules the next poll, which does nothing if the call is over by then.
  static void LookLater(std::shared_ptr<DrainCall> self);

  const std::shared_ptr<CallEnv> env_;
  const DrainWish wish_;
  const absl::Time until_;
  std::string last_;  // The last report, serialized. One poll at a time.
  grpc::Alarm alarm_;
};

}  // namespace hoistd

#endif  // HOIST_DAEMON_RPC_DRAIN_CALL_H_
