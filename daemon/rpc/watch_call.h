#ifndef HOIST_DAEMON_RPC_WATCH_CALL_H_
#define HOIST_DAEMON_RPC_WATCH_CALL_H_

#include <cstdint>
#include <deque>
#include <memory>
#include <optional>

#include "daemon/rpc/call_env.h"
#include "daemon/rpc/stream_call.h"
#include "hoist/v1/admin.pb.h"

namespace hoistd {

// Admin.Watch: streams the engine's events, in order.
//
// Bounds:   kMostQueued events. A watcher that falls further behind is told
//           how many it missed (an event "missed"), then goes on.
class WatchCall final : public StreamCall<hoist::v1::Event> {
 public:
  static constexpr size_t kMostQueued = 1024;

  static std::shared_ptr<WatchCall> Start(std::shared_ptr<CallEnv> env,
                                          const absl::Status& allowed);

 private:
  explicit WatchCall(std::shared_ptr<CallEnv> env) : env_(std::move(env)) {}

  void Push(const NodeEvent& event) ABSL_LOCKS_EXCLUDED(mu_);
  void Subscribed(uint64_t id) ABSL_LOCKS_EXCLUDED(mu_);

  bool Next(hoist::v1::Event* message) override
      ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu_);
  void OnGone() override ABSL_LOCKS_EXCLUDED(mu_);

  const std::shared_ptr<CallEnv> env_;
  std::optional<uint64_t> subscription_ ABSL_GUARDED_BY(mu_);
  std::deque<hoist::v1::Event> queue_ ABSL_GUARDED_BY(mu_);
  uint64_t missed_ ABSL_GUARDED_BY(mu_) = 0;  // Since the last in the queue.
};

}  // namespace hoistd

#endif  // HOIST_DAEMON_RPC_WATCH_CALL_H_
