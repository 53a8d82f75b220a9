#include "daemon/rpc/admin_service.h"

#include <algorithm>
#include <functional>
#include <string>
#include <utility>

#include "absl/strings/str_cat.h"
#include "daemon/base/status.h"
#include "daemon/convert/types_convert.h"
#include "daemon/rpc/admin_convert.h"
#include "daemon/rpc/check_call.h"
#include "daemon/rpc/drain_call.h"
#include "daemon/rpc/end_call.h"
#include "daemon/rpc/load_call.h"
#include "daemon/rpc/node_explainer.h"
#include "daemon/rpc/node_reader.h"
#include "daemon/rpc/trace_call.h"
#include "daemon/rpc/unary_call.h"
#include "daemon/rpc/watch_call.h"

namespace hoistd {
namespace {

using Context = grpc::CallbackServerContext;
using Reactor = grpc::ServerUnaryReactor;

template <typename Response>
using Fill =
    std::function<absl::Status(const NodeView&, const Peer&, Response*)>;

// Answers `peer`, if it is allowed to ask, with what `fill` reads from the
// books. The message's encoding is a work thread's.
template <typename Response>
Reactor* FromBooks(const std::shared_ptr<CallEnv>& env,
                   absl::StatusOr<Peer> peer, Response* response,
                   Fill<Response> fill) {
  return StartUnaryCall(response, std::move(peer), [&](auto call, Peer who) {
    env->engine.Ask(LookArgs{[env, call, fill = std::move(fill),
                              who = std::move(who)](const NodeView& view) {
                      Response out;
                      const absl::Status status = fill(view, who, &out);
                      if (!status.ok()) return call->Fail(status);
                      env->queue.Post([call, out = std::move(out)]() mutable {
                        call->Reply(std::move(out));
                      });
                    }},
                    [call](absl::Status looked) {
                      if (!looked.ok()) call->Fail(looked);
                    });
  });
}

template <typename Request>
absl::StatusOr<AdminAct> ActOnSession(const CallEnv& env,
                                      const Context& context, const char* act,
                                      const Request& request) {
  return env.ActOf(context, act,
                   absl::StrCat("session ", request.session_id()));
}

void SetKept(const CopyTotals& totals, pb::EvictResponse* out) {
  out->set_kept(totals.kept);
  out->set_kept_reason(totals.kept_reason);
}
template <typename Response>
void SetKept(const CopyTotals&, Response*) {}

// The selector as the caller gave it, not yet validated by the engine.
std::string TextOf(const pb::CopySelector& copies) {
  std::string text = copies.model();
  if (!copies.group().empty()) absl::StrAppend(&text, "/", copies.group());
  if (copies.tier() == pb::TIER_HOST) absl::StrAppend(&text, " on host");
  if (copies.tier() == pb::TIER_DEVICE) {
    absl::StrAppend(&text, " on device ", copies.device());
  }
  return text;
}

// The common part of Pin, Unpin and Evict. They differ only in `args`, whose
// copies are filled in here.
template <typename Args, typename Response>
Reactor* OnCopies(const std::shared_ptr<CallEnv>& env, Context* context,
                  const std::string& act_name, const pb::CopySelector& copies,
                  TierNeeded tier_needed, Response* response, Args args) {
  return StartUnaryCall(
      response, env->AdminActOf(*context, act_name, TextOf(copies)),
      [&](auto call, AdminAct act) {
        const Peer peer = act.who();
        Done<CopyTotals> done = Audited<CopyTotals>(
            std::move(act), [call](absl::StatusOr<CopyTotals> totals) {
              if (!totals.ok()) return call->Fail(totals.status());
              Response out;
              out.set_groups(totals->groups);
              out.set_bytes(totals->bytes);
              SetKept(*totals, &out);
              call->Reply(std::move(out));
            });
        absl::StatusOr<CopySelector> which =
            SelectorFromProto(copies, tier_needed);
        if (!which.ok()) {
          done(which.status());
        } else {
          args.which = *std::move(which);
          args.which.asker = peer;
          env->engine.Ask(std::move(args), std::move(done));
        }
      });
}

absl::StatusOr<LoadWish> WishFromProto(const pb::LoadRequest& request) {
  LoadWish wish;
  wish.path = request.path();
  if (!request.name().empty()) {
    HOIST_ASSIGN_OR_RETURN(
        wish.name, NameFromProto("name", request.name(), kMaxModelNameBytes));
  }
  HOIST_ASSIGN_OR_RETURN(
      wish.to, TierFromProto(request.tier(), request.device(), OnHost()));
  if (wish.to.tier == Tier::kDisk) {
    return absl::InvalidArgumentError(
        "tier must be TIER_HOST or TIER_DEVICE: a model is loaded from disk");
  }
  HOIST_ASSIGN_OR_RETURN(wish.joined, JoinedFromProto(request.joined()));
  HOIST_ASSIGN_OR_RETURN(wish.grouping, GroupingFromProto(request.grouping()));
  HOIST_ASSIGN_OR_RETURN(wish.readers, ReadersFromProto(request.readers()));
  return wish;
}

}  // namespace

Reactor* AdminService::Status(Context* context, const pb::StatusRequest*,
                              pb::NodeStatus* response) {
  return FromBooks<pb::NodeStatus>(
      env_, env_->AdminOf(*context), response,
      [env = env_](const NodeView& view, const Peer&, pb::NodeStatus* out) {
        NodeReader(view).Status(env->engine.facts(), env->engine.notes(), out);
        return absl::OkStatus();
      });
}

Reactor* AdminService::ListModels(Context* context,
                                  const pb::ListModelsRequest*,
                                  pb::ListModelsResponse* response) {
  return FromBooks<pb::ListModelsResponse>(
      env_, env_->AdminOf(*context), response,
      [](const NodeView& view, const Peer&, pb::ListModelsResponse* out) {
        NodeReader(view).Models(out);
        return absl::OkStatus();
      });
}

Reactor* AdminService::ListGroups(Context* context,
                                  const pb::ListGroupsRequest* request,
                                  pb::ListGroupsResponse* response) {
  return FromBooks<pb::ListGroupsResponse>(
      env_, env_->AdminOf(*context), response,
      [model = request->model()](const NodeView& view, const Peer& peer,
                                 pb::ListGroupsResponse* out) {
        return NodeReader(view).Groups(peer, model, out);
      });
}

Reactor* AdminService::Explain(Context* context,
                               const pb::ExplainRequest* request,
                               pb::ExplainResponse* response) {
  return FromBooks<pb::ExplainResponse>(
      env_, env_->AdminOf(*context), response,
      [model = request->model(), group = request->group()](
          const NodeView& view, const Peer& peer, pb::ExplainResponse* out) {
        return NodeExplainer(view.node, view.now)
            .Explain(peer, model, group, out);
      });
}

Reactor* AdminService::ListSessions(Context* context,
                                    const pb::ListSessionsRequest*,
                                    pb::ListSessionsResponse* response) {
  return FromBooks<pb::ListSessionsResponse>(
      env_, env_->PeerOf(*context), response,
      [](const NodeView& view, const Peer& peer,
         pb::ListSessionsResponse* out) {
        NodeReader(view).Sessions(peer, out);
        return absl::OkStatus();
      });
}

Reactor* AdminService::ListPlans(Context* context, const pb::ListPlansRequest*,
                                 pb::ListPlansResponse* response) {
  return FromBooks<pb::ListPlansResponse>(
      env_, env_->PeerOf(*context), response,
      [](const NodeView& view, const Peer& peer, pb::ListPlansResponse* out) {
        NodeReader(view).Plans(peer, out);
        return absl::OkStatus();
      });
}

Reactor* AdminService::EndSession(Context* context,
                                  const pb::EndSessionRequest* request,
                                  pb::EndSessionResponse* response) {
  const absl::Duration deadline =
      std::min(DeadlineFromProto(request->deadline_ms()), TimeLeft(*context));
  return StartEndCall(*env_, ActOnSession(*env_, *context, "end", *request),
                      SessionId(request->session_id()), deadline, response);
}

Reactor* AdminService::Sleep(Context* context, const pb::SleepRequest* request,
                             pb::SleepResponse* response) {
  return StartUnaryCall(
      response, ActOnSession(*env_, *context, "sleep", *request),
      [&](auto call, AdminAct act) {
        SleepArgs args{act.who(), SessionId(request->session_id()),
                       DeadlineFromProto(request->idle_ms())};
        env_->engine.Ask(
            std::move(args),
            Audited<PlanTotals>(std::move(act),
                                [call](absl::StatusOr<PlanTotals> totals) {
                                  if (!totals.ok())
                                    return call->Fail(totals.status());
                                  pb::SleepResponse out;
                                  out.set_asked_plans(totals->asked);
                                  out.set_asked_bytes(totals->asked_bytes);
                                  out.set_kept_plans(totals->kept);
                                  out.set_kept_bytes(totals->kept_bytes);
                                  call->Reply(std::move(out));
                                }));
      });
}

Reactor* AdminService::Wake(Context* context, const pb::WakeRequest* request,
                            pb::WakeResponse* response) {
  return StartUnaryCall(
      response, ActOnSession(*env_, *context, "wake", *request),
      [&](auto call, AdminAct act) {
        env_->engine.Ask(WakeArgs{act.who(), SessionId(request->session_id())},
                         [call, act](absl::Status status) {
                           act.Ended(status);
                           if (!status.ok())
                             return call->Fail(std::move(status));
                           call->Reply({});
                         });
      });
}

Reactor* AdminService::SetShare(Context* context,
                                const pb::SetShareRequest* request,
                                pb::SetShareResponse* response) {
  return StartUnaryCall(
      response, env_->AdminActOf(*context, "share", ShareOfText(*request)),
      [&](auto call, AdminAct act) {
        Done<ShareChanged> done = Audited<ShareChanged>(
            std::move(act), [call](absl::StatusOr<ShareChanged> changed) {
              if (!changed.ok()) return call->Fail(changed.status());
              pb::SetShareResponse out;
              ShareToProto(changed->before, out.mutable_before());
              ShareToProto(changed->after, out.mutable_after());
              call->Reply(std::move(out));
            });
        absl::StatusOr<ShareOf> of = ShareOfFromProto(*request);
        absl::StatusOr<ShareChange> change =
            ShareChangeFromProto(request->change());
        absl::Status status = of.status();
        status.Update(change.status());
        if (!status.ok()) {
          done(status);
        } else {
          env_->engine.Ask(SetShareArgs{*of, *change}, std::move(done));
        }
      });
}

Reactor* AdminService::Pin(Context* context, const pb::PinRequest* request,
                           pb::PinResponse* response) {
  PinArgs args;
  args.deadline =
      std::min(DeadlineFromProto(request->deadline_ms()), TimeLeft(*context));
  return OnCopies(env_, context, "pin", request->copies(), TierNeeded::kYes,
                  response, std::move(args));
}

Reactor* AdminService::Unpin(Context* context, const pb::UnpinRequest* request,
                             pb::UnpinResponse* response) {
  return OnCopies(env_, context, "unpin", request->copies(), TierNeeded::kYes,
                  response, UnpinArgs());
}

Reactor* AdminService::Evict(Context* context, const pb::EvictRequest* request,
                             pb::EvictResponse* response) {
  EvictArgs args;
  args.forget = request->forget();
  return OnCopies(env_, context, args.forget ? "forget" : "evict",
                  request->copies(), TierNeeded::kNo, response,
                  std::move(args));
}

grpc::ServerWriteReactor<pb::LoadProgress>* AdminService::Load(
    Context* context, const pb::LoadRequest* request) {
  return LoadCall::Start(env_,
                         env_->AdminActOf(*context, "load", request->path()),
                         WishFromProto(*request))
      .get();
}

grpc::ServerWriteReactor<pb::CheckProgress>* AdminService::Check(
    Context* context, const pb::CheckRequest* request) {
  const std::string on =
      request->model().empty() ? "all published models" : request->model();
  return CheckCall::Start(
             env_,
             env_->AdminActOf(*context, request->repair() ? "repair" : "check",
                              on),
             request->model(), request->repair())
      .get();
}

grpc::ServerWriteReactor<pb::DrainProgress>* AdminService::Drain(
    Context* context, const pb::DrainRequest* request) {
  DrainWish wish;
  wish.deadline =
      std::min(DeadlineFromProto(request->deadline_ms()), TimeLeft(*context));
  wish.resume = request->resume();
  return DrainCall::Start(
             env_,
             env_->AdminActOf(*context, wish.resume ? "resume" : "drain",
                              "the node"),
             wish)
      .get();
}

grpc::ServerWriteReactor<pb::Event>* AdminService::Watch(
    Context* context, const pb::WatchRequest*) {
  return WatchCall::Start(env_, env_->AdminOf(*context).status()).get();
}

grpc::ServerWriteReactor<pb::TraceChunk>* AdminService::Trace(
    Context* context, const pb::TraceRequest* request) {
  const absl::Duration length = absl::Milliseconds(std::min<uint64_t>(
      request->duration_ms(), absl::ToInt64Milliseconds(kMaxDeadline)));
  return TraceCall::Start(
             env_,
             env_->AdminActOf(*context, "trace", absl::FormatDuration(length)),
             length)
      .get();
}

}  // namespace hoistd
