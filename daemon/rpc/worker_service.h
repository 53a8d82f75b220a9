#ifndef HOIST_DAEMON_RPC_WORKER_SERVICE_H_
#define HOIST_DAEMON_RPC_WORKER_SERVICE_H_

#include <memory>
#include <utility>

#include "daemon/rpc/call_env.h"
#include "hoist/v1/worker.grpc.pb.h"

namespace hoistd {

// Serves hoist.v1.Worker from the engine, to any client that may open the
// socket. Each call has an engine session of its own, with the caller's uid.
//
// Threads:  gRPC's; nothing here waits.
class WorkerService final : public hoist::v1::Worker::CallbackService {
 public:
  explicit WorkerService(std::shared_ptr<CallEnv> env) : env_(std::move(env)) {}

  grpc::ServerUnaryReactor* ListDevices(
      grpc::CallbackServerContext* context,
      const hoist::v1::ListDevicesRequest* request,
      hoist::v1::ListDevicesResponse* response) override;
  grpc::ServerUnaryReactor* RegisterModel(
      grpc::CallbackServerContext* context,
      const hoist::v1::WorkerRegisterModelRequest* request,
      hoist::v1::Model* response) override;
  grpc::ServerUnaryReactor* DescribeModel(
      grpc::CallbackServerContext* context,
      const hoist::v1::WorkerDescribeModelRequest* request,
      hoist::v1::Model* response) override;
  grpc::ServerReadReactor<hoist::v1::WorkerPublishRequest>* Publish(
      grpc::CallbackServerContext* context,
      hoist::v1::Model* response) override;
  grpc::ServerWriteReactor<hoist::v1::WorkerStageResponse>* Stage(
      grpc::CallbackServerContext* context,
      const hoist::v1::WorkerStageRequest* request) override;
  grpc::ServerUnaryReactor* Prefetch(
      grpc::CallbackServerContext* context,
      const hoist::v1::WorkerPrefetchRequest* request,
      hoist::v1::WorkerPrefetchResponse* response) override;

 private:
  const std::shared_ptr<CallEnv> env_;
};

}  // namespace hoistd

#endif  // HOIST_DAEMON_RPC_WORKER_SERVICE_H_
