#include "daemon/core/saver.h"

#include <string>

#include "daemon/base/check.h"
#include "daemon/model/model_name.h"

namespace hoistd {
namespace {

// Enough to keep a disk busy; urgent writes go first.
constexpr uint32_t kSpillsAtOnce = 2;

}  // namespace

Saver::Saver(const NodeOptions& options, const DeviceNames& names,
             CopyTable& copies, QuotaBook& quota, SpillBook& disk, Space& space,
             TransferBook& transfers, PersistedLog& persisted,
             Counters& counters)
    : options_(options),
      names_(names),
      copies_(copies),
      quota_(quota),
      disk_(disk),
      space_(space),
      transfers_(transfers),
      persisted_(persisted),
      counters_(counters) {}

void Saver::SaveSoon(GroupKey key) {
  if (options_.saves_at_once && space_.CanSpill()) to_save_.push_back(key);
}

void Saver::SaveSome(absl::Time now, Effects& effects) {
  while (!to_save_.empty() && under_way_ < kSpillsAtOnce &&
         space_.MaySpill(now)) {
    const GroupKey key = to_save_.front();
    to_save_.pop_front();
    // Forgotten or saved already.
    const GroupEntry* group = copies_.FindGroup(key);
    if (group == nullptr || !group->unsaved()) continue;
    Copy& copy = copies_.At({key, kHost});
    if (copy.spilling()) continue;
    Start({key, kHost}, copy, /*urgent=*/false, effects);
  }
}

uint64_t Saver::SaveAll(absl::Time now, Effects& effects) {
  uint64_t left = 0;
  const bool told = !to_save_.empty();
  for (const auto& [id, model] : copies_.models()) {
    if (EndsWith(model->model->spec->name).has_value()) continue;
    for (uint32_t g = 0; g < model->groups.size(); ++g) {
      const GroupEntry& group = model->groups[g];
      if (!group.unsaved()) continue;
      left += group.group->image_bytes;
      if (!told && space_.CanSpill()) to_save_.push_back({id, GroupIndex(g)});
    }
  }
  SaveSome(now, effects);
  return left;
}

void Saver::TellOfDisk(EventKind kind, absl::string_view why,
                       Effects& effects) {
  NodeEvent event;
  event.kind = kind;
  event.at = OnDisk();
  for (const auto& [id, model] : copies_.models()) {
    for (const GroupEntry& group : model->groups) {
      if (group.unsaved()) event.bytes += group.group->image_bytes;
    }
  }
  event.detail = std::string(why);
  effects.events.push_back(std::move(event));
}

void Saver::Start(const CopyRef& ref, Copy& copy, bool urgent,
                  Effects& effects) {
  copies_.Apply(copy, ResidencyEvent::kSpillStart);
  ++copy.readers;
  ++under_way_;
  const Model& model = *copies_.FindModel(ref.key.model)->model;
  transfers_.Start(ref.key,
                   HostToSpill{copy.offset, model.owner, model.readers}, urgent,
                   effects);
}

void Saver::MakeRoom(GroupKey key, Leaving how, Effects& effects) {
  const CopyRef ref = {key, kHost};
  Copy& copy = copies_.At(ref);
  if (copy.spilling()) return Hurry(key, effects);
  const PageableBook::Image* place = copies_.pageable().Find(key);
  if (place == nullptr) return Start(ref, copy, /*urgent=*/true, effects);
  copies_.Apply(copy, ResidencyEvent::kSpillStart);
  copies_.Apply(copy, ResidencyEvent::kLeave);
  copy.left = how;
  ++copy.readers;
  transfers_.Start(key, HostToPageable{copy.offset, place->offset},
                   /*urgent=*/true, effects);
}

// The disk has the image, so the host copy can go even if the copy failed.
void Saver::PagedOut(const Transfer& transfer, const absl::Status& status,
                     absl::Time now, Effects& effects) {
  PageableBook& pageable = copies_.pageable();
  if (!status.ok()) pageable.Failed(now);
  if (OrphanDone(transfer, status, {}, effects)) {
    return pageable.Drop(transfer.key);
  }
  const CopyRef ref = {transfer.key, kHost};
  Copy& copy = copies_.At(ref);
  --copy.readers;
  copies_.Apply(copy, ResidencyEvent::kSpillDone);
  space_.Changed();
  const bool leaves = copy.readers == 0 && copy.leases == 0 && !copy.pinned &&
                      space_.Clean(ref);
  const CopyRef there = {transfer.key, {OnPageable(), false}};
  if (!status.ok()) {
    Note(effects, copies_, EventKind::kCopyFailed, there,
         std::string(status.message()));
  }
  if (leaves && status.ok()) {
    pageable.Came(transfer.key);
    Note(effects, copies_, EventKind::kCopyPresent, there);
  } else {
    pageable.Drop(transfer.key);
  }
  if (!leaves) return;
  const Leaving::Why why = copy.left->why;
  NoteEviction(effects, copies_, counters_, ref, why);
  space_.Drop(ref, copy, ResidencyEvent::kDrop,
              Leaving{why, now, copy.left->room_for});
}

void Saver::Leave(const CopyRef& ref, Copy& copy, Leaving how,
                  Effects& effects) {
  if (copy.spilling()) {
    Hurry(ref.key, effects);
  } else {
    Start(ref, copy, /*urgent=*/true, effects);
  }
  copies_.Apply(copy, ResidencyEvent::kLeave);
  copy.left = how;
}

void Saver::Hurry(GroupKey key, Effects& effects) {
  const Transfer* spill = transfers_.FindSpill(key);
  if (spill != nullptr) transfers_.Hurry(spill->id, effects);
}

void Saver::Orphan(const CopyRef& ref, const Copy& copy) {
  HOIST_CHECK(copy.readers == 1);
  const Transfer* spill = transfers_.FindSpill(ref.key);
  HOIST_CHECK(spill != nullptr);
  orphans_[spill->id] = copy.offset;
  copies_.DropOwner(copy.owner);
  persisted_.Add(PersistedOnHost{copy.offset, {}});
}

bool Saver::OrphanDone(const Transfer& transfer, const absl::Status& status,
                       const TransferResult& result, Effects& effects) {
  const auto orphan = orphans_.find(transfer.id);
  if (orphan == orphans_.end()) return false;
  space_.FreeHost(orphan->second);
  orphans_.erase(orphan);
  if (status.ok() && transfer.by<HostToSpill>() != nullptr) {
    effects.unspill.push_back(result.spill);
  }
  return true;
}

void Saver::Done(const Transfer& transfer, const absl::Status& status,
                 const TransferResult& result, absl::Time now,
                 Effects& effects) {
  --under_way_;
  if (OrphanDone(transfer, status, result, effects)) return;
  const CopyRef ref = {transfer.key, kHost};
  Copy& copy = copies_.At(ref);
  --copy.readers;
  const bool leaves = copy.state == Residency::kLeaving;
  copies_.Apply(copy, ResidencyEvent::kSpillDone);
  space_.Changed();
  if (!status.ok()) {
    // A full disk is no fault of the image: reported once.
    if (disk_.Failed(status, now)) {
      TellOfDisk(EventKind::kDiskFull, status.message(), effects);
    } else if (!absl::IsResourceExhausted(status)) {
      Note(effects, copies_, EventKind::kCopyFailed,
           {transfer.key, {OnDisk(), false}}, std::string(status.message()));
    }
    return SaveSoon(transfer.key);
  }
  const ModelPtr model = copies_.FindModel(transfer.key.model)->model;
  quota_.Remove(model->owner, Quota::kPublishedBytes, SpaceOf(*transfer.group));
  copies_.SetSpilled(*copies_.FindGroup(transfer.key), result.spill);
  Note(effects, copies_, EventKind::kCopyPresent,
       {transfer.key, {OnDisk(), false}}, "spilled");
  if (disk_.Worked()) TellOfDisk(EventKind::kDiskWritable, "", effects);
  if (!leaves || copy.readers > 0 || copy.leases > 0 || copy.pinned) return;
  const Leaving::Why why = copy.left->why;
  NoteEviction(effects, copies_, counters_, ref, why);
  space_.Drop(ref, copy, ResidencyEvent::kDrop, Leaving{why, now});
}

CopyTotals Saver::Evict(const std::vector<CopyRef>& copies, Leaving::Why why,
                        absl::Time now, Effects& effects) {
  CopyTotals totals;
  for (const CopyRef& ref : copies) {
    if (ref.place == kHost && copies_.pageable().Evict(ref.key)) {
      ++totals.groups;
      totals.bytes += copies_.FindGroup(ref.key)->group->image_bytes;
      NoteEviction(effects, copies_, counters_, ref, why);
    }
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
      Leave(ref, *copy, {why, now}, effects);
      continue;
    }
    NoteEviction(effects, copies_, counters_, ref, why);
    space_.Drop(ref, *copy, ResidencyEvent::kDrop, Leaving{why, now});
  }
  return totals;
}

}  // namespace hoistd
