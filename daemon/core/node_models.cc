// Models: queries, and their removal.
#include "daemon/base/status.h"
#include "daemon/core/node.h"

namespace hoistd {

absl::Status Node::ForgetBy(SessionId session, ModelId id, absl::Time now,
                            Effects& effects) {
  HOIST_RETURN_IF_ERROR(registry_.FindOwn(session, id).status());
  return Forget(id, now, effects, tenure_.PeerOf(session));
}

absl::Status Node::Forget(ModelId id, absl::Time now, Effects& effects,
                          const Peer* asker) {
  const ModelEntry* entry = copies_.FindModel(id);
  if (entry == nullptr) return absl::NotFoundError("no such model");
  HOIST_RETURN_IF_ERROR(picture().InUse(*entry, asker));
  RemoveModel(id, "", now, effects);
  Tick(now, effects);
  return absl::OkStatus();
}

void Node::RemoveModel(ModelId id, const std::string& why, absl::Time now,
                       Effects& effects) {
  Retire({id, space_.DropModel(id)}, why, now, effects);
}

void Node::Retire(const ForgottenModel& gone, const std::string& why,
                  absl::Time now, Effects& effects) {
  supply_.Forget(gone.model, now, effects);
  Follow(now, effects);  // Waiters are told, by the model's name.
  tenure_.orders().ForgetModel(gone.model);
  tenure_.sessions().ForgetModel(gone.model);
  tenure_.heat().ForgetModel(gone.model);
  registry_.Remove(gone, why, effects);
}

}  // namespace hoistd
