#include "daemon/app/doors.h"

#include <spdlog/spdlog.h>

#include <algorithm>
#include <optional>
#include <utility>

#include "absl/strings/str_cat.h"
#include "daemon/app/quotas.h"
#include "daemon/base/clock.h"
#include "daemon/base/status.h"
#include "daemon/socket/peer_process.h"
#include "hoist/shared/wire.h"

namespace hoistd {

absl::StatusOr<std::unique_ptr<Doors>> Doors::Open(const Config& config,
                                                   DoorOptions options,
                                                   Engine& engine) {
  std::unique_ptr<Doors> doors(new Doors(config, std::move(options), engine));
  HOIST_RETURN_IF_ERROR(doors->Serve());
  return doors;
}

absl::Status Doors::ServeSessions(SessionServerOptions options,
                                  const std::string& group) {
  if (!group.empty()) {
    const absl::StatusOr<gid_t> id = GroupByName(group);
    if (!id.ok()) return Annotate(id.status(), "server.group");
    options.socket.group = *id;
  }
  options.max_sessions = config_.server.max_sessions;
  options.io_helpers = options_.io_helpers;
  options.instance_id = engine_.instance().id;
  options.keeps = options_.keeps;
  options.generation = engine_.instance().generation;
  std::erase_if(resumed_, [&](const ResumedSession& session) {
    const User user = session.peer.uid;
    const bool here =
        options.tenant.has_value() ? user == options.tenant : !user.is_tenant();
    if (here) options.resumed.push_back(session);
    return here;
  });
  // At least the descriptors of one message.
  options.connection.max_in_flight_fds_of_uid =
      std::clamp<uint64_t>(DescriptorLimit() / 8, hoist::kMaxFdsPerMessage,
                           options.connection.max_in_flight_fds_of_uid);
  HOIST_ASSIGN_OR_RETURN(auto server,
                         SessionServer::Create(std::move(options), engine_));
  sessions_.push_back(std::move(server));
  return absl::OkStatus();
}

absl::Status Doors::ServeCalls(RpcOptions options, ListeningSocket socket) {
  options.model_roots = config_.models.roots;
  options.io_helpers = options_.io_helpers;
  options.control = options_.control;
  options.examine = options_.examine;
  options.max_publish_bytes = options_.max_publish_bytes;
  HOIST_ASSIGN_OR_RETURN(
      auto server,
      RpcServer::Create(std::move(options), std::move(socket), engine_));
  calls_.push_back(std::move(server));
  return absl::OkStatus();
}

absl::Status Doors::Serve() {
  const ServerConfig& server = config_.server;
  resumed_ = engine_.TakeResumed();
  SessionServerOptions options;
  options.socket.path = server.socket;
  options.socket.mode = server.socket_mode;
  options.listen_fd = std::move(options_.session_fd);
  if (const auto admins = GroupByName(server.admin_group); admins.ok()) {
    options.admin_group = *admins;
  }
  RpcOptions calls;
  calls.socket = server.grpc_socket;
  calls.socket_mode = server.socket_mode;
  calls.group = server.group;
  calls.admin_group = server.admin_group;
  HOIST_ASSIGN_OR_RETURN(ListeningSocket listens, RpcServer::Listen(calls));
  HOIST_RETURN_IF_ERROR(ServeSessions(std::move(options), server.group));
  HOIST_RETURN_IF_ERROR(ServeCalls(std::move(calls), std::move(listens)));
  for (const TenantConfig& tenant : config_.tenants) {
    HOIST_RETURN_IF_ERROR(
        Annotate(ServeTenant(tenant), absl::StrCat("tenant ", tenant.name)));
  }
  for (const ResumedSession& session : resumed_) {
    SPDLOG_INFO("session {} does not go on: its tenant is none any more",
                session.id.number());
    if (session.ended.ok()) engine_.CloseSession(session.id);
  }
  resumed_.clear();
  return absl::OkStatus();
}

absl::Status Doors::ServeTenant(const TenantConfig& tenant) {
  SessionServerOptions options;
  options.tenant = User::Tenant(tenant.name);
  options.socket.path = tenant.socket;
  options.socket.mode = tenant.socket_mode;
  if (tenant.grpc_socket.empty()) {
    return ServeSessions(std::move(options), tenant.group);
  }
  RpcOptions calls;
  calls.tenant = User::Tenant(tenant.name);
  calls.socket = tenant.grpc_socket;
  calls.socket_mode = tenant.socket_mode;
  calls.group = tenant.group;
  HOIST_ASSIGN_OR_RETURN(ListeningSocket listens, RpcServer::Listen(calls));
  HOIST_RETURN_IF_ERROR(ServeSessions(std::move(options), tenant.group));
  return ServeCalls(std::move(calls), std::move(listens));
}

void Doors::SetServing(bool serving) {
  for (const auto& server : calls_) server->SetServing(serving);
}

void Doors::SetModelRoots(const std::vector<std::string>& roots) {
  for (const auto& server : calls_) server->SetModelRoots(roots);
}

void Doors::EndCalls(absl::Duration within) {
  const MonotonicClock clock;
  const absl::Time end = clock.Now() + within;
  for (const auto& server : calls_) {
    server->Shutdown(std::max(absl::ZeroDuration(), end - clock.Now()));
  }
}

void Doors::EndSessions() {
  for (const auto& server : sessions_) server->Shutdown();
}

}  // namespace hoistd
