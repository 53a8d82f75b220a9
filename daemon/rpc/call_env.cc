#include "daemon/rpc/call_env.h"

#include <algorithm>
#include <chrono>

#include "absl/strings/str_cat.h"
#include "absl/time/clock.h"
#include "daemon/base/status.h"
#include "daemon/convert/types_convert.h"

namespace hoistd {

absl::StatusOr<Peer> CallEnv::PeerOf(
    const grpc::ServerContextBase& call) const {
  HOIST_ASSIGN_OR_RETURN(Peer peer, find_peer(call.peer()));
  if (calls != nullptr) HOIST_RETURN_IF_ERROR(calls->Check(peer.uid));
  return peer;
}

absl::StatusOr<Peer> CallEnv::AdminOf(
    const grpc::ServerContextBase& call) const {
  HOIST_ASSIGN_OR_RETURN(Peer peer, PeerOf(call));
  HOIST_RETURN_IF_ERROR(CheckAdmin(peer));
  return peer;
}

absl::StatusOr<AdminAct> CallEnv::ActOf(const grpc::ServerContextBase& call,
                                        std::string act, std::string on) const {
  HOIST_ASSIGN_OR_RETURN(Peer peer, PeerOf(call));
  return AdminAct(std::move(peer), std::move(act), std::move(on));
}

absl::StatusOr<AdminAct> CallEnv::AdminActOf(
    const grpc::ServerContextBase& call, std::string act,
    std::string on) const {
  HOIST_ASSIGN_OR_RETURN(Peer peer, PeerOf(call));
  const absl::Status allowed = CheckAdmin(peer);
  AdminAct made(std::move(peer), std::move(act), std::move(on));
  if (allowed.ok()) return made;
  made.Ended(allowed);
  return allowed;
}

absl::Status CallEnv::CheckAdmin(const Peer& peer) const {
  if (peer.admin) return absl::OkStatus();
  if (peer.uid.is_tenant()) {
    return absl::PermissionDeniedError(
        absl::StrCat("Admin is not for tenants, whatever their uid; you are ",
                     ToString(peer.uid), "; use server.grpc_socket"));
  }
  return absl::PermissionDeniedError(absl::StrCat(
      "Admin is for root, hoistd's own user",
      admin_group.empty()
          ? std::string(" (server.admin_group in hoistd.toml adds a group)")
          : absl::StrCat(" and the group ", admin_group),
      "; you are uid ", peer.uid.number(),
      peer.apart ? " of another user or pid namespace, where nobody is an "
                   "admin; run hoistctl where hoistd runs (docker exec, "
                   "kubectl exec, or outside of your container)"
                 : ""));
}

absl::Duration TimeLeft(const grpc::ServerContextBase& call) {
  const auto deadline = call.deadline();
  if (deadline == std::chrono::system_clock::time_point::max()) {
    return kMaxDeadline;
  }
  return std::min(kMaxDeadline, absl::FromChrono(deadline) - absl::Now());
}

void OpenCallSession(EngineApi& engine, Peer peer, std::string what,
                     Done<CallSession> done) {
  OpenSessionArgs args;
  args.client_name = std::move(what);
  args.peer = std::move(peer);
  engine.OpenSession(
      std::move(args), /*on_word=*/nullptr,
      [&engine, done = std::move(done)](absl::StatusOr<SessionId> id) mutable {
        if (!id.ok()) return done(id.status());
        done(CallSession(&engine, *id));
      });
}

}  // namespace hoistd
