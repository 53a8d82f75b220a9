#ifndef HOIST_DAEMON_RPC_PUBLISH_CALL_H_
#define HOIST_DAEMON_RPC_PUBLISH_CALL_H_

#include <cstdint>
#include <memory>
#include <optional>

#include "absl/base/thread_annotations.h"
#include "absl/status/status.h"
#include "absl/synchronization/mutex.h"
#include "daemon/rpc/call_env.h"
#include "grpcpp/support/server_callback.h"
#include "hoist/v1/worker.pb.h"

namespace hoistd {

// Worker.Publish: collects the image in a memfd, then publishes it.
//
// Bounds:   all such calls together hold at most CallEnv::max_publish_bytes; a
//           call that would exceed it gets ResourceExhausted.
class PublishCall final
    : public grpc::ServerReadReactor<hoist::v1::WorkerPublishRequest> {
 public:
  // `response` is gRPC's, and valid until the call is done. An error in `peer`
  // refuses the call.
  static std::shared_ptr<PublishCall> Start(std::shared_ptr<CallEnv> env,
                                            absl::StatusOr<Peer> peer,
                                            hoist::v1::Model* response);
  ~PublishCall() override;

 private:
  PublishCall(std::shared_ptr<CallEnv> env, hoist::v1::Model* response)
      : env_(std::move(env)), response_(response) {}

  absl::Status Take(const hoist::v1::WorkerPublishRequest& part);
  absl::Status TakeHeader(
      const hoist::v1::WorkerPublishRequest::Header& header);
  absl::Status TakeChunk(const std::string& chunk);
  // Called when all parts have arrived.
  absl::Status Complete();
  absl::Status Reserve(uint64_t bytes);

  // The first answer counts. It is dropped if the caller has gone.
  void Answer(absl::StatusOr<hoist::v1::Model> model) ABSL_LOCKS_EXCLUDED(mu_);
  bool answered() const ABSL_LOCKS_EXCLUDED(mu_);

  void OnReadDone(bool ok) override;
  void OnCancel() override;
  void OnDone() override { self_.reset(); }

  const std::shared_ptr<CallEnv> env_;
  // The members below are accessed only by reads, which are sequential.
  hoist::v1::WorkerPublishRequest part_;
  Peer peer_;
  std::optional<PublishArgs> args_;  // Once the header has come.
  uint64_t image_bytes_ = 0;
  uint64_t received_bytes_ = 0;
  uint64_t reserved_bytes_ = 0;

  mutable absl::Mutex mu_;
  bool answered_ ABSL_GUARDED_BY(mu_) = false;
  hoist::v1::Model* const response_;
  std::shared_ptr<PublishCall> self_;  // gRPC's share; only OnDone resets it.
};

}  // namespace hoistd

#endif  // HOIST_DAEMON_RPC_PUBLISH_CALL_H_
