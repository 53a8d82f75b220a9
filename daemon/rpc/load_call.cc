#include "daemon/rpc/load_call.h"

#include <utility>

#include "daemon/convert/types_convert.h"

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
    BringUp(
        self->env_->engine, self->env_->paths(), self->act_->who(),
        "Admin.Load", *std::move(wish),
        [self](const LoadProgress& progress) { self->Report(progress); },
        [self](absl::StatusOr<BroughtUp> loaded) {
          if (!loaded.ok()) return self->Fail(loaded.status());
          self->act_->Ended(absl::OkStatus(), AuditText(loaded->progress));
          self->env_->queue.Post([self, loaded = *std::move(loaded)]() mutable {
            self->Finish(std::move(loaded));
          });
        });
  }
  return self;
}

void LoadCall::Fail(const absl::Status& why) {
  act_->Ended(why);
  End(why);
}

void LoadCall::Report(const LoadProgress& progress) {
  {
    absl::MutexLock lock(&mu_);
    // Only the last message has the model; progress must not replace it.
    if (latest_.has_value() && latest_->has_model()) return;
    latest_.emplace();
    ProgressToProto(progress, &*latest_);
  }
  Wake();
}

void LoadCall::Finish(BroughtUp loaded) {
  pb::LoadProgress message;
  ProgressToProto(loaded.progress, &message);
  ModelToProto(*loaded.model, message.mutable_model());
  Put(std::move(message));
  End(absl::OkStatus());
}

}  // namespace hoistd
