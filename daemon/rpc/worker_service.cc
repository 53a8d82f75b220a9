#include "daemon/rpc/worker_service.h"

#include <algorithm>
#include <string>
#include <vector>

#include "absl/strings/str_cat.h"
#include "daemon/base/status.h"
#include "daemon/convert/types_convert.h"
#include "daemon/model/model.h"
#include "daemon/rpc/open_path.h"
#include "daemon/rpc/publish_call.h"
#include "daemon/rpc/stage_call.h"
#include "daemon/rpc/unary_call.h"

namespace hoistd {
namespace {

using Context = grpc::CallbackServerContext;
using Reactor = grpc::ServerUnaryReactor;
using ModelCall = std::shared_ptr<UnaryCall<pb::Model>>;

constexpr char kDescribe[] = "Worker.DescribeModel";

// Answers with a model. It may be large, so a work thread converts it.
Done<ModelPtr> ReplyModel(std::shared_ptr<CallEnv> env, ModelCall call,
                          CallSession session) {
  return
      [env = std::move(env), call = std::move(call),
       session = std::move(session)](absl::StatusOr<ModelPtr> model) mutable {
        session.Close();
        if (!model.ok()) return call->Fail(model.status());
        env->queue.Post([call, model = *std::move(model)] {
          pb::Model out;
          ModelToProto(*model, &out);
          call->Reply(std::move(out));
        });
      };
}

// `args`: of a verb that answers with a model.
template <typename Args>
void AskForModel(std::shared_ptr<CallEnv> env, Peer peer, const char* verb,
                 Args args, ModelCall call) {
  EngineApi& engine = env->engine;
  OpenCallSession(
      engine, std::move(peer), verb,
      [&engine, env = std::move(env), args = std::move(args),
       call = std::move(call)](absl::StatusOr<CallSession> session) mutable {
        if (!session.ok()) return call->Fail(session.status());
        const SessionId id = session->id();
        engine.Ask(
            id, std::move(args),
            ReplyModel(std::move(env), std::move(call), *std::move(session)));
      });
}

// The arguments of RegisterModel without the files.
absl::StatusOr<RegisterModelArgs> ArgsFromProto(
    const pb::WorkerRegisterModelRequest& request) {
  RegisterModelArgs args;
  HOIST_ASSIGN_OR_RETURN(
      args.name, NameFromProto("name", request.name(), kMaxModelNameBytes));
  HOIST_ASSIGN_OR_RETURN(args.joined, JoinedFromProto(request.joined()));
  HOIST_ASSIGN_OR_RETURN(args.grouping, GroupingFromProto(request.grouping()));
  HOIST_ASSIGN_OR_RETURN(args.readers, ReadersFromProto(request.readers()));
  return args;
}

struct PrefetchWish {
  std::string model;
  std::vector<std::string> groups;  // Empty: all.
  TierAt to;
};

absl::StatusOr<PrefetchWish> WishFromProto(
    const pb::WorkerPrefetchRequest& request) {
  PrefetchWish wish;
  HOIST_ASSIGN_OR_RETURN(
      wish.model, NameFromProto("model", request.model(), kMaxModelNameBytes));
  HOIST_ASSIGN_OR_RETURN(wish.to,
                         TierFromProto(request.tier(), request.device()));
  if (wish.to.tier == Tier::kDisk) {
    return absl::InvalidArgumentError(
        "tier must be TIER_DEVICE or TIER_HOST: nothing is prefetched to disk");
  }
  if (request.groups_size() > kMaxGroupsPerModel) {
    return absl::InvalidArgumentError(
        absl::StrCat(request.groups_size(), " groups; at most ",
                     kMaxGroupsPerModel, " are allowed"));
  }
  wish.groups.assign(request.groups().begin(), request.groups().end());
  return wish;
}

absl::StatusOr<PrefetchArgs> Resolve(const Model& model,
                                     const PrefetchWish& wish) {
  PrefetchArgs args;
  args.model = model.id;
  args.to = wish.to;
  for (const std::string& name : wish.groups) {
    const std::optional<GroupIndex> index = FindGroup(*model.spec, name);
    if (!index.has_value()) {
      return absl::NotFoundError(absl::StrCat("model \"", wish.model,
                                              "\" has no group \"", name,
                                              "\"; DescribeModel lists them"));
    }
    args.groups.push_back(*index);
  }
  if (wish.groups.empty()) {
    for (uint32_t i = 0; i < model.spec->groups.size(); ++i) {
      args.groups.emplace_back(i);
    }
  }
  return args;
}

using PrefetchReply = std::shared_ptr<UnaryCall<pb::WorkerPrefetchResponse>>;

void PrefetchIn(EngineApi& engine, CallSession session, PrefetchWish wish,
                PrefetchReply call) {
  const SessionId id = session.id();
  DescribeModelArgs describe = {wish.model};
  engine.Ask(id, std::move(describe),
             [&engine, id, session = std::move(session), wish = std::move(wish),
              call = std::move(call)](absl::StatusOr<ModelPtr> model) mutable {
               if (!model.ok()) return call->Fail(model.status());
               absl::StatusOr<PrefetchArgs> args = Resolve(**model, wish);
               if (!args.ok()) return call->Fail(args.status());
               engine.Ask(
                   id, *std::move(args),
                   [session = std::move(session),
                    call = std::move(call)](absl::Status status) mutable {
                     session.Close();
                     if (!status.ok()) return call->Fail(status);
                     call->Reply(pb::WorkerPrefetchResponse());
                   });
             });
}

absl::StatusOr<StageWish> WishFromProto(const pb::WorkerStageRequest& request,
                                        absl::Duration left) {
  StageWish wish;
  HOIST_ASSIGN_OR_RETURN(
      wish.model, NameFromProto("model", request.model(), kMaxModelNameBytes));
  HOIST_ASSIGN_OR_RETURN(
      wish.group, NameFromProto("group", request.group(), kMaxGroupNameBytes));
  wish.device = DeviceIndex(request.device());
  wish.deadline =
      std::max(absl::ZeroDuration(),
               std::min(DeadlineFromProto(request.deadline_ms()), left));
  return wish;
}

}  // namespace

Reactor* WorkerService::ListDevices(Context* context,
                                    const pb::ListDevicesRequest*,
                                    pb::ListDevicesResponse* response) {
  return StartUnaryCall(
      response, env_->PeerOf(*context), [&](auto call, const Peer&) {
        pb::ListDevicesResponse out;
        for (const DeviceView& device : env_->engine.facts().devices) {
          // Access in place needs descriptors, which gRPC cannot carry.
          if (device.info.kind == DeviceKind::kInPlace) continue;
          DeviceToProto(device, out.add_devices());
        }
        call->Reply(std::move(out));
      });
}

Reactor* WorkerService::RegisterModel(
    Context* context, const pb::WorkerRegisterModelRequest* request,
    pb::Model* response) {
  return StartUnaryCall(
      response, env_->PeerOf(*context), [&](auto call, Peer peer) {
        absl::StatusOr<RegisterModelArgs> args = ArgsFromProto(*request);
        if (!args.ok()) return call->Fail(args.status());
        if (request->path().empty()) {
          return AskForModel(env_, std::move(peer), kDescribe,
                             DescribeModelArgs{args->name}, call);
        }
        const User user = peer.uid;
        OpenPath(
            env_->paths(), user, request->path(),
            [env = env_, call, peer = std::move(peer), args = *std::move(args)](
                absl::StatusOr<ModelFiles> files) mutable {
              if (!files.ok()) return call->Fail(files.status());
              args.shards = std::move(files->shards);
              args.index = std::move(files->index);
              AskForModel(std::move(env), std::move(peer),
                          "Worker.RegisterModel", std::move(args),
                          std::move(call));
            });
      });
}

Reactor* WorkerService::DescribeModel(
    Context* context, const pb::WorkerDescribeModelRequest* request,
    pb::Model* response) {
  return StartUnaryCall(
      response, env_->PeerOf(*context), [&](auto call, Peer peer) {
        absl::StatusOr<std::string> name =
            NameFromProto("name", request->name(), kMaxModelNameBytes);
        if (!name.ok()) return call->Fail(name.status());
        AskForModel(env_, std::move(peer), kDescribe,
                    DescribeModelArgs{*std::move(name)}, call);
      });
}

grpc::ServerReadReactor<pb::WorkerPublishRequest>* WorkerService::Publish(
    Context* context, pb::Model* response) {
  return PublishCall::Start(env_, env_->PeerOf(*context), response).get();
}

grpc::ServerWriteReactor<pb::WorkerStageResponse>* WorkerService::Stage(
    Context* context, const pb::WorkerStageRequest* request) {
  absl::StatusOr<Peer> peer = env_->PeerOf(*context);
  absl::StatusOr<StageWish> wish = WishFromProto(*request, TimeLeft(*context));
  if (!peer.ok()) return StageCall::Refuse(peer.status()).get();
  if (!wish.ok()) return StageCall::Refuse(wish.status()).get();
  return StageCall::Start(env_, *std::move(peer), *std::move(wish)).get();
}

Reactor* WorkerService::Prefetch(Context* context,
                                 const pb::WorkerPrefetchRequest* request,
                                 pb::WorkerPrefetchResponse* response) {
  return StartUnaryCall(
      response, env_->PeerOf(*context), [&](auto call, Peer peer) {
        absl::StatusOr<PrefetchWish> wish = WishFromProto(*request);
        if (!wish.ok()) return call->Fail(wish.status());
        EngineApi& engine = env_->engine;
        OpenCallSession(engine, std::move(peer), "Worker.Prefetch",
                        [&engine, call, wish = *std::move(wish)](
                            absl::StatusOr<CallSession> session) mutable {
                          if (!session.ok())
                            return call->Fail(session.status());
                          PrefetchIn(engine, *std::move(session),
                                     std::move(wish), std::move(call));
                        });
      });
}

}  // namespace hoistd
