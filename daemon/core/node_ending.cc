#include "daemon/core/node_ending.h"

#include <set>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "daemon/model/model_name.h"

namespace hoistd {

void NodeEnding::EndOfGone() {
  for (const auto& [id, model] : node_.copies_.models()) {
    const auto session = EndsWith(model->model->spec->name);
    if (session.has_value() && node_.sessions_.Find(*session) == nullptr) {
      node_.ending_.insert(id);
    }
  }
}

void NodeEnding::Remove(absl::Time now, Effects& effects) {
  const std::set<ModelId> ending = node_.ending_;
  for (const ModelId id : ending) {
    const ModelEntry* entry = node_.copies_.FindModel(id);
    if (entry != nullptr && !node_.InUse(*entry, nullptr).ok()) continue;
    node_.ending_.erase(id);
    if (entry != nullptr) {
      node_.RemoveModel(id, "its session is over", now, effects);
    }
  }
}

absl::Status NodeEnding::Park(SessionId session, const Model& model,
                              const PrefetchArgs& args, absl::Time now,
                              Effects& effects) {
  if (EndsWith(model.spec->name) != session) {
    return absl::PermissionDeniedError(absl::StrCat(
        "only what ends with this session goes to the disk at its word, and ",
        model.spec->name, " does not; publish it with of_session"));
  }
  std::vector<CopyRef> copies;
  for (const GroupIndex group : args.groups) {
    const CopyRef ref = {{model.id, group}, kHost};
    if (node_.copies_.FindGroup(ref.key) == nullptr) {
      return absl::NotFoundError(
          absl::StrCat(model.spec->name, " has no group ", group.number(),
                       "; it has ", model.spec->groups.size()));
    }
    copies.push_back(ref);
  }
  const CopyTotals parked =
      node_.Evict(copies, now, effects, Leaving::Why::kEvicted);
  if (parked.kept == 0) return absl::OkStatus();
  return absl::FailedPreconditionError(
      absl::StrCat(parked.kept, " of ", copies.size(),
                   " groups stay on the host: ", parked.kept_reason));
}

}  // namespace hoistd
