#ifndef HOIST_DAEMON_RPC_LOAD_CALL_H_
#define HOIST_DAEMON_RPC_LOAD_CALL_H_

#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "daemon/rpc/call_env.h"
#include "daemon/rpc/stream_call.h"
#include "hoist/v1/admin.pb.h"

namespace hoistd {

struct LoadWish {
  std::string path;
  std::string name;  // Empty: the folder's or file's.
  TierAt to;
  std::vector<JoinedTensor> joined;
  GroupingSpec grouping;
  std::optional<Readers> readers;
};

// Admin.Load: opens and registers a model, then brings it up and tells how far
// it is. A slow reader gets the newest progress, not all of it. What was begun
// goes on when the caller leaves.
class LoadCall final : public StreamCall<hoist::v1::LoadProgress> {
 public:
  // A wish that is an error refuses the call.
  static std::shared_ptr<LoadCall> Start(std::shared_ptr<CallEnv> env,
                                         absl::StatusOr<AdminAct> act,
                                         absl::StatusOr<LoadWish> wish);

 private:
  LoadCall(std::shared_ptr<CallEnv> env, std::optional<AdminAct> act)
      : env_(std::move(env)), act_(std::move(act)) {}

  // On an errand's thread, or a work thread; then the engine's.
  static void Open(std::shared_ptr<LoadCall> self, LoadWish wish);
  static void Register(std::shared_ptr<LoadCall> self, TierAt to,
                       RegisterModelArgs args);
  static void BringUp(std::shared_ptr<LoadCall> self, TierAt to,
                      ModelPtr model);
  // Ends the act, and the call if its caller is still there.
  void Fail(const absl::Status& why);
  void Report(const LoadProgress& progress) ABSL_LOCKS_EXCLUDED(mu_);

  bool Next(hoist::v1::LoadProgress* message) override
      ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu_);
  void OnGone() override {}

  const std::shared_ptr<CallEnv> env_;
  const std::optional<AdminAct> act_;  // nullopt: refused.
  std::optional<hoist::v1::LoadProgress> latest_ ABSL_GUARDED_BY(mu_);
};

}  // namespace hoistd

#endif  // HOIST_DAEMON_RPC_LOAD_CALL_H_
