// Saving: what was published is written to the disk soon after it came, so that
// a power cut, or a stop, loses little of it or nothing.
#include <algorithm>
#include <utility>

#include "daemon/base/check.h"
#include "daemon/core/node.h"
#include "daemon/model/model_name.h"

namespace hoistd {
namespace {

// Enough to keep a disk busy; what somebody waits for goes before them.
constexpr uint32_t kSpillsAtOnce = 2;
constexpr absl::Duration kSpillRetry = absl::Seconds(10);

}  // namespace

void Node::SaveSoon(GroupKey key) {
  if (options_.saves_at_once && CanSpill()) to_save_.push_back(key);
}

void Node::SaveSome(absl::Time now, Effects& effects) {
  while (!to_save_.empty() && spilling_ < kSpillsAtOnce && MaySpill(now)) {
    const GroupKey key = to_save_.front();
    to_save_.pop_front();
    // Forgotten, or saved already.
    const GroupEntry* group = copies_.FindGroup(key);
    if (group == nullptr || !group->unsaved()) continue;
    Copy& copy = copies_.At({key, kHost});
    if (copy.state == Residency::kSpilling) continue;
    StartSpill({key, kHost}, copy, /*urgent=*/false, effects);
  }
}

uint64_t Node::SaveAll(absl::Time now, Effects& effects) {
  uint64_t left = 0;
  const bool told = !to_save_.empty();
  for (const auto& [id, model] : copies_.models()) {
    if (EndsWith(model->model->spec->name).has_value()) continue;
    for (uint32_t g = 0; g < model->groups.size(); ++g) {
      const GroupEntry& group = model->groups[g];
      if (!group.unsaved()) continue;
      left += group.group->image_bytes;
      if (!told && CanSpill()) to_save_.push_back({id, GroupIndex(g)});
    }
  }
  SaveSome(now, effects);
  return left;
}

void Node::StartSpill(const CopyRef& ref, Copy& copy, bool urgent,
                      Effects& effects) {
  copies_.Apply(copy, ResidencyEvent::kSpillStart);
  ++copy.readers;
  ++spilling_;
  const Model& model = *copies_.FindModel(ref.key.model)->model;
  Start(ref.key, HostToSpill{copy.offset, model.owner, model.readers}, urgent,
        effects);
}

// Somebody waits for what is being written without haste.
void Node::HurrySpill(GroupKey key, Effects& effects) {
  for (const auto& [id, transfer] : transfers_) {
    if (transfer.key == key && transfer.by<HostToSpill>() != nullptr) {
      return Hurry(id, effects);
    }
  }
}

// Its model is forgotten while it is written: what lies on the host stays until
// that ends.
void Node::OrphanSpill(const CopyRef& ref, const Copy& copy) {
  HOIST_CHECK(copy.readers == 1);
  for (const auto& [id, transfer] : transfers_) {
    if (transfer.key != ref.key || transfer.by<HostToSpill>() == nullptr) {
      continue;
    }
    orphans_[id] = copy.offset;
    copies_.DropOwner(copy.owner);
    Keep(KeptOnHost{copy.offset, {}});
    return;
  }
  HOIST_CHECK(false);  // It is being spilled.
}

bool Node::OrphanSpilled(const Transfer& transfer, const absl::Status& status,
                         const TransferResult& result, Effects& effects) {
  const auto orphan = orphans_.find(transfer.id);
  if (orphan == orphans_.end()) return false;
  host_.Free(orphan->second);
  orphans_.erase(orphan);
  ++space_epoch_;
  if (status.ok()) effects.unspill.push_back(result.spill);
  return true;
}

void Node::Spilled(const Transfer& transfer, const absl::Status& status,
                   const TransferResult& result, absl::Time now,
                   Effects& effects) {
  --spilling_;
  if (OrphanSpilled(transfer, status, result, effects)) return;
  const CopyRef ref = {transfer.key, kHost};
  Copy& copy = copies_.At(ref);
  --copy.readers;
  copies_.Apply(copy, ResidencyEvent::kSpillDone);
  ++space_epoch_;
  if (!status.ok()) {
    spill_failed_ = status;
    spill_retry_at_ = now + kSpillRetry;
    copy.leaving = false;
    // A disk without room is no fault of it.
    if (!absl::IsResourceExhausted(status)) {
      Note(effects, EventKind::kCopyFailed, {transfer.key, {OnDisk(), false}},
           std::string(status.message()));
    }
    return SaveSoon(transfer.key);
  }
  spill_failed_ = absl::OkStatus();
  const ModelPtr model = copies_.FindModel(transfer.key.model)->model;
  quota_.Remove(model->owner, Quota::kPublishedBytes, SpaceOf(*transfer.group));
  copies_.FindGroup(transfer.key)->spilled = result.spill;
  Note(effects, EventKind::kCopyPresent, {transfer.key, {OnDisk(), false}},
       "spilled");
  if (!copy.leaving || copy.readers > 0 || copy.leases > 0 || copy.pinned) {
    return;
  }
  Note(effects, EventKind::kCopyDropped, ref, "evicted");
  ++counters_.host_evictions;
  Drop(ref, copy, ResidencyEvent::kDrop, Leaving{Leaving::Why::kEvicted, now});
}

}  // namespace hoistd
