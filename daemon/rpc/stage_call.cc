#include "daemon/rpc/stage_call.h"

#include <unistd.h>

#include <utility>

#include "absl/strings/str_cat.h"
#include "daemon/convert/types_convert.h"
#include "daemon/model/model.h"

namespace hoistd {
namespace {

// gRPC carries no descriptors. On CUDA the image must lie in a slab that has an
// IPC handle; elsewhere a path names hoistd's own descriptor.
bool NeedsIpc(const EngineApi& engine, DeviceIndex device) {
  for (const DeviceView& view : engine.facts().devices) {
    if (view.info.index == device) {
      return view.info.kind == DeviceKind::kCuda;
    }
  }
  return false;
}

void SlabsToProto(const LeaseGrant& grant, pb::Lease* out) {
  for (const SlabUse& use : grant.new_slabs) {
    pb::Slab* slab = out->add_slabs();
    SlabToProto(use, grant.device, slab);
    if (use.share.backing == Backing::kMemfd) {
      slab->set_path(absl::StrCat("/proc/", getpid(), "/fd/", use.share.fd));
    }
  }
}

}  // namespace

std::shared_ptr<StageCall> StageCall::Start(std::shared_ptr<CallEnv> env,
                                            Peer peer, StageWish wish) {
  EngineApi& engine = env->engine;
  std::shared_ptr<StageCall> self(
      new StageCall(std::move(env), std::move(wish)));
  self->Own(self);
  OpenCallSession(engine, std::move(peer), "Worker.Stage",
                  [self](absl::StatusOr<CallSession> session) {
                    if (!session.ok()) return self->End(session.status());
                    Opened(self, *std::move(session));
                  });
  return self;
}

std::shared_ptr<StageCall> StageCall::Refuse(const absl::Status& status) {
  std::shared_ptr<StageCall> self(new StageCall(nullptr, {}));
  self->Own(self);
  self->End(status);
  return self;
}

void StageCall::Opened(std::shared_ptr<StageCall> self, CallSession session) {
  const SessionId id = session.id();
  {
    absl::MutexLock lock(&self->mu_);
    if (!self->gone()) std::swap(self->session_, session);
  }
  if (session.open()) return;  // The caller has gone; this closes the session.
  self->env_->engine.Ask(id, DescribeModelArgs{self->wish_.model},
                         [self, id](absl::StatusOr<ModelPtr> model) {
                           if (!model.ok()) return self->End(model.status());
                           Described(self, id, *std::move(model));
                         });
}

void StageCall::Described(std::shared_ptr<StageCall> self, SessionId session,
                          ModelPtr model) {
  const std::optional<GroupIndex> index =
      FindGroup(*model->spec, self->wish_.group);
  if (!index.has_value()) {
    return self->End(absl::NotFoundError(
        absl::StrCat("model \"", self->wish_.model, "\" has no group \"",
                     self->wish_.group, "\"; DescribeModel lists them")));
  }
  std::shared_ptr<const Group> group = model->spec->groups[index->number()];
  StageArgs args;
  args.key = {model->id, *index};
  args.device = self->wish_.device;
  args.deadline = self->wish_.deadline;
  EngineApi& engine = self->env_->engine;
  args.shared = NeedsIpc(engine, args.device);
  auto done = [self, group = std::move(group),
               index = *index](absl::StatusOr<LeaseGrant> grant) mutable {
    if (!grant.ok()) return self->End(grant.status());
    Granted(std::move(self), *std::move(grant), std::move(group), index);
  };
  engine.Ask(session, args, std::move(done));
}

void StageCall::Granted(std::shared_ptr<StageCall> self, LeaseGrant grant,
                        std::shared_ptr<const Group> group, GroupIndex index) {
  WorkQueue& queue = self->env_->queue;
  queue.Post([self = std::move(self), grant = std::move(grant),
              group = std::move(group), index] {
    pb::WorkerStageResponse response;
    LeaseToProto(grant, response.mutable_lease());
    SlabsToProto(grant, response.mutable_lease());
    GroupToProto(*group, index, response.mutable_group());
    self->Put(std::move(response));
  });
}

void StageCall::OnGone() {
  CallSession session;  // Closed outside the lock.
  absl::MutexLock lock(&mu_);
  session = std::move(session_);
}

}  // namespace hoistd
