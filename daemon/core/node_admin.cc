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
  CopyTotals totals;
  for (const CopyRef& ref : copies) {
    Copy* copy = copies_.Find(ref);
    if (copy == nullptr || copy->state == Residency::kAbsent) continue;
    const bool unsaved = !space_.Clean(ref);
    const bool going = OnlySpilling(*copy);
    std::string keeps;
    if (copy->leases > 0) {
      keeps = "leased";
    } else if (copy->pinned) {
      keeps = "pinned";
    } else if (!going && (!copy->present() || copy->readers > 0)) {
      keeps = "being copied";
    } else if (unsaved && (ref.place != kHost || !space_.MaySpill(now))) {
      keeps = space_.CanSpill() ? "the only copy, and cannot be spilled now"
                                : "the only copy (no disk.spill_dir is set)";
    }
    if (!keeps.empty()) {
      ++totals.kept;
      totals.kept_reason = absl::StrCat(copies_.NameOf(ref.key), " is ", keeps,
                                        " ", names_.On(ref.place.at));
      continue;
    }
    ++totals.groups;
    totals.bytes += copies_.FindGroup(ref.key)->group->image_bytes;
    if (going || unsaved) {
      supply_.saver().Leave(ref, *copy, {why, now}, effects);
      continue;
    }
    NoteEviction(effects, copies_, counters_, ref, why);
    space_.Drop(ref, *copy, ResidencyEvent::kDrop, Leaving{why, now});
  }
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
