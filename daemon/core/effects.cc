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

void NoteEviction(Effects& effects, const CopyTable& copies, Counters& counters,
                  const CopyRef& ref, Leaving::Why why) {
  const bool device = ref.place.at.tier == Tier::kDevice;
  switch (why) {
    case Leaving::Why::kForRoom:
      ++(device ? counters.device_evictions : counters.host_evictions);
      break;
    case Leaving::Why::kByAdmin:
      ++(device ? counters.device_evictions_by_admins
                : counters.host_evictions_by_admins);
      break;
    case Leaving::Why::kByWorker:  // Only from the host.
      ++counters.host_evictions_by_workers;
      break;
    case Leaving::Why::kHeadroom:  // Only from devices.
      ++counters.device_evictions_for_headroom;
      break;
  }
  Note(effects, copies, EventKind::kCopyDropped, ref,
       why == Leaving::Why::kByAdmin ? "by an admin" : "evicted");
}

bool Refuses(Effects& effects, RequestId request, const absl::Status& status) {
  if (status.ok()) return false;
  effects.answers.push_back({request, status});
  return true;
}

}  // namespace hoistd
