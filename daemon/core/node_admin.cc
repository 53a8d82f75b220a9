// Admins' requests.
#include <utility>

#include "absl/strings/str_cat.h"
#include "daemon/core/node.h"

namespace hoistd {

CopyTotals Node::Unpin(const std::vector<CopyRef>& copies, absl::Time now,
                       Effects& effects) {
  CopyTotals totals;
  for (const CopyRef& ref : copies) {
    Copy* copy = copies_.Find(ref);
    if (copy == nullptr || !copy->pinned) continue;
    space_.SetPinned(ref, *copy, false);
    space_.Changed();
    ++totals.groups;
    totals.bytes += copies_.FindGroup(ref.key)->group->image_bytes;
  }
  Tick(now, effects);
  return totals;
}

CopyTotals Node::Evict(const std::vector<CopyRef>& copies, absl::Time now,
                       Effects& effects, Leaving::Why why) {
  const CopyTotals totals = supply_.saver().Evict(copies, why, now, effects);
  Tick(now, effects);
  return totals;
}

void Node::SetDraining(bool draining, Effects& effects) {
  if (tenure_.draining() == draining) return;
  tenure_.SetDraining(draining);
  effects.events.push_back(
      {.kind = draining ? EventKind::kDraining : EventKind::kResumed});
}

}  // namespace hoistd
