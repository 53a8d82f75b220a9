#ifndef HOIST_DAEMON_RPC_WORKER_SERVICE_H_
#define HOIST_DAEMON_RPC_WORKER_SERVICE_H_

#include <memory>
#include <utility>

#include "daemon/rpc/call_env.h"
#include "hoist/v1/worker.grpc.pb.h"

namespace hoistd {

namespace pb = hoist::v1;

// Serves hoist.v1.Worker from the engine, to any client that may open the
// socket. Each call has an engine session of its own, with the caller's uid.
//
// Threads:  gRPC's; nothing here waits.
class WorkerService final : public pb::Worker::CallbackService {
 public:
  using Context = grpc::CallbackServerContext;
  using Reactor = grpc::ServerUnaryReactor;
  template <typename Message>
  using Writer = grpc::ServerWriteReactor<Message>;

  explicit WorkerService(std::shared_ptr<CallEnv> env) : env_(std::move(env)) {}

  Reactor* ListDevices(Context* context, const pb::ListDevicesRequest* request,
                       pb::ListDevicesResponse* response) override;
  Reactor* RegisterModel(Context* context,
                         const pb::WorkerRegisterModelRequest* request,
                         pb::Model* response) override;
  Reactor* DescribeModel(Context* context,
                         const pb::WorkerDescribeModelRequest* request,
                         pb::Model* response) override;
  grpc::ServerReadReactor<pb::WorkerPublishRequest>* Publish(
      Context* context, pb::Model* response) override;
  Writer<pb::WorkerStageResponse>* Stage(
      Context* context, const pb::WorkerStageRequest* request) override;
  Reactor* Prefetch(Context* context, const pb::WorkerPrefetchRequest* request,
                    pb::WorkerPrefetchResponse* response) override;

 private:
  const std::shared_ptr<CallEnv> env_;
};

}  // namespace hoistd

#endif  // HOIST_DAEMON_RPC_WORKER_SERVICE_H_
