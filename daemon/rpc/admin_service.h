#ifndef HOIST_DAEMON_RPC_ADMIN_SERVICE_H_
#define HOIST_DAEMON_RPC_ADMIN_SERVICE_H_

#include <memory>
#include <utility>

#include "daemon/rpc/call_env.h"
#include "hoist/v1/admin.grpc.pb.h"

namespace hoistd {

namespace pb = hoist::v1;

// Serves hoist.v1.Admin from the engine, and from the daemon itself
// (control_calls.cc). Every method requires an admin, except ListSessions,
// ListPlans, EndSession, Sleep and Wake: other users may call them on their own
// sessions.
//
// Threads:  gRPC's; nothing here waits.
class AdminService final : public pb::Admin::CallbackService {
 public:
  using Context = grpc::CallbackServerContext;
  using Reactor = grpc::ServerUnaryReactor;
  template <typename Message>
  using Writer = grpc::ServerWriteReactor<Message>;

  explicit AdminService(std::shared_ptr<CallEnv> env) : env_(std::move(env)) {}

  Reactor* Status(Context* context, const pb::StatusRequest* request,
                  pb::NodeStatus* response) override;
  Reactor* ListModels(Context* context, const pb::ListModelsRequest* request,
                      pb::ListModelsResponse* response) override;
  Reactor* ListGroups(Context* context, const pb::ListGroupsRequest* request,
                      pb::ListGroupsResponse* response) override;
  Reactor* Explain(Context* context, const pb::ExplainRequest* request,
                   pb::ExplainResponse* response) override;
  Reactor* ListSessions(Context* context,
                        const pb::ListSessionsRequest* request,
                        pb::ListSessionsResponse* response) override;
  Reactor* EndSession(Context* context, const pb::EndSessionRequest* request,
                      pb::EndSessionResponse* response) override;
  Reactor* Sleep(Context* context, const pb::SleepRequest* request,
                 pb::SleepResponse* response) override;
  Reactor* Wake(Context* context, const pb::WakeRequest* request,
                pb::WakeResponse* response) override;
  Reactor* ListPlans(Context* context, const pb::ListPlansRequest* request,
                     pb::ListPlansResponse* response) override;
  Reactor* SetShare(Context* context, const pb::SetShareRequest* request,
                    pb::SetShareResponse* response) override;
  Writer<pb::LoadProgress>* Load(Context* context,
                                 const pb::LoadRequest* request) override;
  Writer<pb::CheckProgress>* Check(Context* context,
                                   const pb::CheckRequest* request) override;
  Reactor* Pin(Context* context, const pb::PinRequest* request,
               pb::PinResponse* response) override;
  Reactor* Unpin(Context* context, const pb::UnpinRequest* request,
                 pb::UnpinResponse* response) override;
  Reactor* Evict(Context* context, const pb::EvictRequest* request,
                 pb::EvictResponse* response) override;
  Writer<pb::DrainProgress>* Drain(Context* context,
                                   const pb::DrainRequest* request) override;
  Writer<pb::Event>* Watch(Context* context,
                           const pb::WatchRequest* request) override;
  Reactor* Reload(Context* context, const pb::ReloadRequest* request,
                  pb::ReloadResponse* response) override;
  Reactor* GetConfig(Context* context, const pb::GetConfigRequest* request,
                     pb::GetConfigResponse* response) override;
  Reactor* Examine(Context* context, const pb::ExamineRequest* request,
                   pb::ExamineResponse* response) override;
  Reactor* SetLogLevel(Context* context, const pb::SetLogLevelRequest* request,
                       pb::SetLogLevelResponse* response) override;
  Writer<pb::TraceChunk>* Trace(Context* context,
                                const pb::TraceRequest* request) override;

 private:
  const std::shared_ptr<CallEnv> env_;
};

}  // namespace hoistd

#endif  // HOIST_DAEMON_RPC_ADMIN_SERVICE_H_
