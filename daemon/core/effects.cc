#include "daemon/core/effects.h"

#include <utility>

namespace hoistd {

void Note(Effects& effects, const CopyTable& copies, EventKind kind,
          const CopyRef& ref, std::string detail) {
  const ModelEntry* model = copies.FindModel(ref.key.model);
  const GroupEntry* group = copies.FindGroup(ref.key);
  NodeEvent event;
  event.kind = kind;
  if (model != nullptr) event.model = model->model->spec->name;
  if (group != nullptr) {
    event.group = group->group->name;
    event.bytes = group->group->image_bytes;
  }
  event.at = ref.place.at;
  event.detail = std::move(detail);
  effects.events.push_back(std::move(event));
}

}  // namespace hoistd
