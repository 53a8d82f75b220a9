#include "daemon/rpc/check_call.h"

#include <utility>

#include "daemon/rpc/admin_convert.h"

namespace hoistd {

std::shared_ptr<CheckCall> CheckCall::Start(std::shared_ptr<CallEnv> env,
                                            absl::StatusOr<AdminAct> act,
                                            std::string model, bool repair) {
  std::shared_ptr<CheckCall> self(new CheckCall());
  self->Own(self);
  if (!act.ok()) {
    self->End(act.status());
    return self;
  }
  CheckArgs args;
  args.asker = act->who();
  args.model = std::move(model);
  args.repair = repair;
  args.progress = [self](const CheckProgress& at) { self->Report(at); };
  env->engine.Ask(std::move(args), [self, act = *std::move(act)](
                                       absl::StatusOr<CheckProgress> done) {
    act.Ended(done);
    if (done.ok()) self->Report(*done);
    self->End(done.status());
  });
  return self;
}

void CheckCall::Report(const CheckProgress& progress) {
  hoist::v1::CheckProgress message;
  CheckProgressToProto(progress, &message);
  Put(std::move(message));
}

}  // namespace hoistd
