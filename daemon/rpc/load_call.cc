#include "daemon/rpc/load_call.h"

#include <utility>

#include "daemon/convert/types_convert.h"
#include "daemon/rpc/open_path.h"

namespace hoistd {

std::shared_ptr<LoadCall> LoadCall::Start(std::shared_ptr<CallEnv> env,
                                          absl::StatusOr<AdminAct> act,
                                          absl::StatusOr<LoadWish> wish) {
  const absl::Status allowed = act.status();
  std::optional<AdminAct> allowed_act;
  if (act.ok()) allowed_act = *std::move(act);
  std::shared_ptr<LoadCall> self(
      new LoadCall(std::move(env), std::move(allowed_act)));
  self->Own(self);
  if (!allowed.ok()) {
    self->End(allowed);
  } else if (!wish.ok()) {
    self->Fail(wish.status());
  } else {
    Open(self, *std::move(wish));
  }
  return self;
}

void LoadCall::Fail(const absl::Status& why) {
  act_->Ended(why);
  End(why);
}

void LoadCall::Open(std::shared_ptr<LoadCall> self, LoadWish wish) {
  CallEnv& env = *self->env_;
  const User user = self->act_->who().uid;
  std::string path = wish.path;
  OpenPath(env, user, std::move(path),
           [self = std::move(self),
            wish = std::move(wish)](absl::StatusOr<ModelFiles> files) mutable {
             if (!files.ok()) return self->Fail(files.status());
             RegisterModelArgs args;
             args.name = wish.name.empty() ? files->name : wish.name;
             args.shards = std::move(files->shards);
             args.index = std::move(files->index);
             args.joined = std::move(wish.joined);
             args.grouping = std::move(wish.grouping);
             args.readers = wish.readers;
             Register(std::move(self), wish.to, std::move(args));
           });
}

void LoadCall::Register(std::shared_ptr<LoadCall> self, TierAt to,
                        RegisterModelArgs args) {
  EngineApi& engine = self->env_->engine;
  const Peer& peer = self->act_->who();
  OpenCallSession(
      engine, peer, "Admin.Load",
      [&engine, self = std::move(self), to,
       args = std::move(args)](absl::StatusOr<CallSession> session) mutable {
        if (!session.ok()) return self->Fail(session.status());
        const SessionId id = session->id();
        engine.RegisterModel(
            id, std::move(args),
            [self = std::move(self), to, session = *std::move(session)](
                absl::StatusOr<ModelPtr> model) mutable {
              session.Close();
              if (!model.ok()) return self->Fail(model.status());
              BringUp(std::move(self), to, *std::move(model));
            });
      });
}

void LoadCall::BringUp(std::shared_ptr<LoadCall> self, TierAt to,
                       ModelPtr model) {
  EngineApi& engine = self->env_->engine;
  const ModelId id = model->id;
  engine.Load(
      id, to, [self](const LoadProgress& progress) { self->Report(progress); },
      [self, model = std::move(model)](absl::StatusOr<LoadProgress> done) {
        self->act_->Ended(done);
        if (!done.ok()) return self->End(done.status());
        self->env_->queue.Post([self, model, last = *done] {
          pb::LoadProgress message;
          ProgressToProto(last, &message);
          ModelToProto(*model, message.mutable_model());
          {
            absl::MutexLock lock(&self->mu_);
            self->latest_ = std::move(message);
          }
          self->End(absl::OkStatus());
        });
      });
}

void LoadCall::Report(const LoadProgress& progress) {
  {
    absl::MutexLock lock(&mu_);
    // The last message, which alone has the model, is not to be overtaken.
    if (latest_.has_value() && latest_->has_model()) return;
    latest_.emplace();
    ProgressToProto(progress, &*latest_);
  }
  Wake();
}

bool LoadCall::Next(pb::LoadProgress* message) {
  if (!latest_.has_value()) return false;
  *message = *std::move(latest_);
  latest_.reset();
  return true;
}

}  // namespace hoistd
