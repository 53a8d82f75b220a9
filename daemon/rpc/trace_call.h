#ifndef HOIST_DAEMON_RPC_TRACE_CALL_H_
#define HOIST_DAEMON_RPC_TRACE_CALL_H_

#include <cstdint>
#include <memory>
#include <optional>

#include "absl/time/time.h"
#include "daemon/rpc/call_env.h"
#include "daemon/rpc/stream_call.h"
#include "daemon/trace/recorder.h"
#include "grpcpp/alarm.h"
#include "hoist/v1/admin.pb.h"

namespace hoistd {

// Admin.Trace: records trace events while the call lasts, and streams them.
//
// Owns:     the recording, until its time is over and all of it was sent, or
//           its peer has gone.
// Bounds:   kLongest; kEventsAChunk. Events that the peer has not taken stay in
//           the recorder, which drops the excess.
class TraceCall final : public StreamCall<hoist::v1::TraceChunk> {
 public:
  static constexpr absl::Duration kLongest = absl::Minutes(10);
  static constexpr size_t kEventsAChunk = 4096;
  // How long the peer may take for the rest. After that the recording ends, so
  // that others can record.
  static constexpr absl::Duration kToTakeTheRest = absl::Seconds(10);

  static std::shared_ptr<TraceCall> Start(std::shared_ptr<CallEnv> env,
                                          absl::StatusOr<AdminAct> act,
                                          absl::Duration length);

 private:
  TraceCall(std::shared_ptr<CallEnv> env, std::optional<AdminAct> act,
            absl::Duration length)
      : env_(std::move(env)), act_(std::move(act)), length_(length) {}

  void Refuse(const absl::Status& why);
  void Began(std::unique_ptr<TraceRecording> recording)
      ABSL_LOCKS_EXCLUDED(mu_);
  // Sends the events so far, then schedules the next look or ends the call.
  void Look() ABSL_LOCKS_EXCLUDED(mu_);
  void LookIn(absl::Duration time) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu_);

  bool Next(hoist::v1::TraceChunk* message) override
      ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu_);
  void OnGone() override ABSL_LOCKS_EXCLUDED(mu_);

  const std::shared_ptr<CallEnv> env_;
  const std::optional<AdminAct> act_;  // nullopt: it was refused.
  const absl::Duration length_;
  std::unique_ptr<TraceRecording> recording_ ABSL_GUARDED_BY(mu_);
  bool began_ ABSL_GUARDED_BY(mu_) = false;
  bool told_ ABSL_GUARDED_BY(mu_) = false;  // The first message was sent.
  bool all_ ABSL_GUARDED_BY(mu_) = false;   // Its time is over.
  uint64_t began_unix_ns_ ABSL_GUARDED_BY(mu_) = 0;
  uint64_t events_ ABSL_GUARDED_BY(mu_) = 0;
  uint64_t dropped_ ABSL_GUARDED_BY(mu_) = 0;
  // A new alarm each time, since its own callback schedules the next one.
  std::unique_ptr<grpc::Alarm> alarm_ ABSL_GUARDED_BY(mu_);
};

}  // namespace hoistd

#endif  // HOIST_DAEMON_RPC_TRACE_CALL_H_
