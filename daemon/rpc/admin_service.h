#ifndef HOIST_DAEMON_RPC_ADMIN_SERVICE_H_
#define HOIST_DAEMON_RPC_ADMIN_SERVICE_H_

#include <memory>
#include <utility>

#include "daemon/rpc/call_env.h"
#include "hoist/v1/admin.grpc.pb.h"

namespace hoistd {

// Serves hoist.v1.Admin from the engine, and from the daemon itself
// (control_calls.cc). Every method requires an admin, except ListSessions,
// ListPlans, EndSession, Sleep and Wake: other users may call them on their own
// sessions.
//
// Threads:  gRPC's; nothing here waits.
class AdminService final : public hoist::v1::Admin::CallbackService {
 public:
  explicit AdminService(std::shared_ptr<CallEnv> env) : env_(std::move(env)) {}

  grpc::ServerUnaryReactor* Status(grpc::CallbackServerContext* context,
                                   const hoist::v1::StatusRequest* request,
                                   hoist::v1::NodeStatus* response) override;
  grpc::ServerUnaryReactor* ListModels(
      grpc::CallbackServerContext* context,
      const hoist::v1::ListModelsRequest* request,
      hoist::v1::ListModelsResponse* response) override;
  grpc::ServerUnaryReactor* ListGroups(
      grpc::CallbackServerContext* context,
      const hoist::v1::ListGroupsRequest* request,
      hoist::v1::ListGroupsResponse* response) override;
  grpc::ServerUnaryReactor* Explain(
      grpc::CallbackServerContext* context,
      const hoist::v1::ExplainRequest* request,
      hoist::v1::ExplainResponse* response) override;
  grpc::ServerUnaryReactor* ListSessions(
      grpc::CallbackServerContext* context,
      const hoist::v1::ListSessionsRequest* request,
      hoist::v1::ListSessionsResponse* response) override;
  grpc::ServerUnaryReactor* EndSession(
      grpc::CallbackServerContext* context,
      const hoist::v1::EndSessionRequest* request,
      hoist::v1::EndSessionResponse* response) override;
  grpc::ServerUnaryReactor* Sleep(grpc::CallbackServerContext* context,
                                  const hoist::v1::SleepRequest* request,
                                  hoist::v1::SleepResponse* response) override;
  grpc::ServerUnaryReactor* Wake(grpc::CallbackServerContext* context,
                                 const hoist::v1::WakeRequest* request,
                                 hoist::v1::WakeResponse* response) override;
  grpc::ServerUnaryReactor* ListPlans(
      grpc::CallbackServerContext* context,
      const hoist::v1::ListPlansRequest* request,
      hoist::v1::ListPlansResponse* response) override;
  grpc::ServerUnaryReactor* SetShare(
      grpc::CallbackServerContext* context,
      const hoist::v1::SetShareRequest* request,
      hoist::v1::SetShareResponse* response) override;
  grpc::ServerWriteReactor<hoist::v1::LoadProgress>* Load(
      grpc::CallbackServerContext* context,
      const hoist::v1::LoadRequest* request) override;
  grpc::ServerWriteReactor<hoist::v1::CheckProgress>* Check(
      grpc::CallbackServerContext* context,
      const hoist::v1::CheckRequest* request) override;
  grpc::ServerUnaryReactor* Pin(grpc::CallbackServerContext* context,
                                const hoist::v1::PinRequest* request,
                                hoist::v1::PinResponse* response) override;
  grpc::ServerUnaryReactor* Unpin(grpc::CallbackServerContext* context,
                                  const hoist::v1::UnpinRequest* request,
                                  hoist::v1::UnpinResponse* response) override;
  grpc::ServerUnaryReactor* Evict(grpc::CallbackServerContext* context,
                                  const hoist::v1::EvictRequest* request,
                                  hoist::v1::EvictResponse* response) override;
  grpc::ServerWriteReactor<hoist::v1::DrainProgress>* Drain(
      grpc::CallbackServerContext* context,
      const hoist::v1::DrainRequest* request) override;
  grpc::ServerWriteReactor<hoist::v1::Event>* Watch(
      grpc::CallbackServerContext* context,
      const hoist::v1::WatchRequest* request) override;
  grpc::ServerUnaryReactor* Reload(
      grpc::CallbackServerContext* context,
      const hoist::v1::ReloadRequest* request,
      hoist::v1::ReloadResponse* response) override;
  grpc::ServerUnaryReactor* GetConfig(
      grpc::CallbackServerContext* context,
      const hoist::v1::GetConfigRequest* request,
      hoist::v1::GetConfigResponse* response) override;
  grpc::ServerUnaryReactor* Examine(
      grpc::CallbackServerContext* context,
      const hoist::v1::ExamineRequest* request,
      hoist::v1::ExamineResponse* response) override;
  grpc::ServerUnaryReactor* SetLogLevel(
      grpc::CallbackServerContext* context,
      const hoist::v1::SetLogLevelRequest* request,
      hoist::v1::SetLogLevelResponse* response) override;
  grpc::ServerWriteReactor<hoist::v1::TraceChunk>* Trace(
      grpc::CallbackServerContext* context,
      const hoist::v1::TraceRequest* request) override;

 private:
  const std::shared_ptr<CallEnv> env_;
};

}  // namespace hoistd

#endif  // HOIST_DAEMON_RPC_ADMIN_SERVICE_H_
