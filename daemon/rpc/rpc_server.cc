#include "daemon/rpc/rpc_server.h"

#include <algorithm>
#include <chrono>
#include <optional>
#include <thread>
#include <utility>
#include <vector>

#include "daemon/base/start_thread.h"
#include "daemon/base/status.h"
#include "daemon/rpc/admin_service.h"
#include "daemon/rpc/call_counts.h"
#include "daemon/rpc/call_env.h"
#include "daemon/rpc/refusal_log.h"
#include "daemon/rpc/worker_service.h"
#include "daemon/socket/peer_process.h"
#include "grpcpp/ext/proto_server_reflection_plugin.h"
#include "grpcpp/health_check_service_interface.h"
#include "grpcpp/server.h"
#include "grpcpp/server_builder.h"
#include "grpcpp/server_posix.h"

namespace hoistd {
namespace {

constexpr int kMaxMessageBytes = 64 * 1024 * 1024;
constexpr int kMaxCallsPerConnection = 128;
constexpr int kQueueThreads = 2;
// The threads of gRPC 1.51: two for every second CPU, and executors, timers and
// pollers. If one fails to start, only the calls that it would serve suffer.
int GrpcThreads() {
  const int cpus = static_cast<int>(std::thread::hardware_concurrency());
  return 8 + 2 * std::clamp(cpus / 2, 2, 16);
}

// The shortest interval of a client's keepalive pings. hoistctl pings while it
// waits.
constexpr int kPingEveryMs = 40;

class RpcServerImpl final : public RpcServer {
 public:
  RpcServerImpl(std::shared_ptr<CallEnv> env,
                std::unique_ptr<Connections> connections, RpcLimits limits)
      : limits_(limits),
        env_(std::move(env)),
        connections_(std::move(connections)),
        admin_(env_),
        worker_(env_) {}
  ~RpcServerImpl() override { Shutdown(absl::ZeroDuration()); }

  absl::Status Start() {
    HOIST_RETURN_IF_ERROR(
        Annotate(TryThreads(GrpcThreads()), "threads of gRPC's server"));
    env_->find_peer = [this](const std::string& peer) {
      return connections_->Find(peer);
    };
    grpc::EnableDefaultHealthCheckService(true);
    grpc::reflection::InitProtoReflectionServerBuilderPlugin();
    grpc::ServerBuilder builder;
    builder.SetMaxReceiveMessageSize(kMaxMessageBytes);
    // Unlimited: a model's description grows with its number of tensors.
    builder.SetMaxSendMessageSize(-1);
    builder.AddChannelArgument(GRPC_ARG_MAX_CONCURRENT_STREAMS,
                               kMaxCallsPerConnection);
    builder.AddChannelArgument(
        GRPC_ARG_MAX_CONNECTION_IDLE_MS,
        static_cast<int>(absl::ToInt64Milliseconds(limits_.idle)));
    builder.AddChannelArgument(
        GRPC_ARG_HTTP2_MIN_RECV_PING_INTERVAL_WITHOUT_DATA_MS, kPingEveryMs);
    env_->calls = std::make_shared<CallCounts>(limits_.calls_of_user);
    std::vector<
        std::unique_ptr<grpc::experimental::ServerInterceptorFactoryInterface>>
        interceptors;
    interceptors.push_back(CountCalls(env_->calls, env_->find_peer));
    interceptors.push_back(LogRefusals(env_->find_peer));
    builder.experimental().SetInterceptorCreators(std::move(interceptors));
    builder.RegisterService(&admin_);
    builder.RegisterService(&worker_);
    server_ = builder.BuildAndStart();
    if (server_ == nullptr) {
      return absl::InternalError("gRPC's server does not start");
    }
    server_->GetHealthCheckService()->SetServingStatus(
        hoist::v1::Admin::service_full_name(), true);
    SetServing(true);
    return connections_->Start([server = server_.get()](int fd) {
      grpc::AddInsecureChannelFromFd(server, fd);
    });
  }

  void Shutdown(absl::Duration deadline) override {
    if (server_ == nullptr) return;
    connections_->Stop();
    server_->Shutdown(std::chrono::system_clock::now() +
                      absl::ToChronoMicroseconds(deadline));
    // From here on, the engine's late answers are dropped.
    env_->queue.Stop();
    server_.reset();
  }

  void SetServing(bool serving) override {
    grpc::HealthCheckServiceInterface* health =
        server_->GetHealthCheckService();
    health->SetServingStatus("", serving);
    health->SetServingStatus(hoist::v1::Worker::service_full_name(), serving);
  }

  void SetModelRoots(std::vector<std::string> roots) override {
    env_->model_roots.Set(std::move(roots));
  }

  size_t connections() const override { return connections_->count(); }

 private:
  const RpcLimits limits_;
  const std::shared_ptr<CallEnv> env_;
  const std::unique_ptr<Connections> connections_;
  AdminService admin_;
  WorkerService worker_;
  std::unique_ptr<grpc::Server> server_;
};

}  // namespace

absl::StatusOr<ListeningSocket> RpcServer::Listen(const RpcOptions& options) {
  SocketFileOptions file;
  file.path = options.socket;
  file.mode = options.socket_mode;
  file.type = SOCK_STREAM;
  if (!options.group.empty()) {
    const absl::StatusOr<gid_t> group = GroupByName(options.group);
    if (!group.ok()) return Annotate(group.status(), "server.group");
    file.group = *group;
  }
  return ListeningSocket::Create(std::move(file));
}

absl::StatusOr<std::unique_ptr<RpcServer>> RpcServer::Create(
    RpcOptions options, EngineApi& engine) {
  HOIST_ASSIGN_OR_RETURN(ListeningSocket socket, Listen(options));
  return Create(std::move(options), std::move(socket), engine);
}

absl::StatusOr<std::unique_ptr<RpcServer>> RpcServer::Create(
    RpcOptions options, ListeningSocket socket, EngineApi& engine) {
  std::optional<gid_t> admin_group;
  if (!options.admin_group.empty()) {
    absl::StatusOr<gid_t> group = GroupByName(options.admin_group);
    if (group.ok()) admin_group = *group;
  }
  HOIST_ASSIGN_OR_RETURN(
      std::unique_ptr<Connections> connections,
      Connections::Create(std::move(socket), admin_group, options.connections,
                          options.tenant));
  auto env = std::make_shared<CallEnv>(engine);
  env->io_helpers = options.io_helpers;
  env->control = options.control;
  env->examine = std::move(options.examine);
  env->model_roots.Set(std::move(options.model_roots));
  env->admin_group = std::move(options.admin_group);
  env->max_publish_bytes = options.max_publish_bytes;
  HOIST_RETURN_IF_ERROR(env->queue.Start(kQueueThreads));
  auto server = std::make_unique<RpcServerImpl>(
      std::move(env), std::move(connections), options.connections);
  HOIST_RETURN_IF_ERROR(server->Start());
  return server;
}

}  // namespace hoistd
