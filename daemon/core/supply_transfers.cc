// Transfers: their start, and the effects of their end.
#include <utility>
#include <variant>

#include "absl/strings/str_cat.h"
#include "daemon/base/check.h"
#include "daemon/base/overloaded.h"
#include "daemon/core/supply.h"

namespace hoistd {

Transfer Supply::Take(TransferId id, const absl::Status& status) {
  Transfer transfer = transfers_.Take(id);
  if (status.ok()) Count(transfer, counters_);
  return transfer;
}

void Supply::Done(const Transfer& transfer, const absl::Status& status,
                  const TransferResult& result, absl::Time now,
                  Effects& effects) {
  std::visit(Overloaded{
                 [&](const FilesToHost& way) {
                   // An empty group has no part.
                   if (way.reads.empty()) {
                     return HostFilled(transfer, status, now, effects);
                   }
                   PartsFilled(transfer.id, status, now, effects);
                 },
                 [&](const SpillToHost&) {
                   HostFilled(transfer, status, now, effects);
                 },
                 [&](const PageableToHost&) {
                   copies_.pageable().Drop(transfer.key);
                   HostFilled(transfer, status, now, effects);
                   if (status.ok()) return SaveUnsaved(transfer.key);
                   MarkLostIfGone(transfer.key, status, effects);
                 },
                 [&](const HostToPageable&) {
                   saver_.PagedOut(transfer, status, now, effects);
                 },
                 [&](const CheckOnHost&) {
                   HostChecked(transfer, status, result.content, now, effects);
                 },
                 [&](const HostToSpill&) {
                   saver_.Done(transfer, status, result, now, effects);
                 },
                 [&](const HostToDevice&) {
                   DeviceFilled(transfer, kHost, status, now, effects);
                 },
                 [&](const InPlaceToDevice& way) {
                   DeviceFilled(transfer,
                                {OnDevice(way.from), false, way.from_apart},
                                status, now, effects);
                 },
                 [&](const HostToClient& way) {
                   Sent(transfer, way, status, effects);
                 },
                 [](const auto&) { HOIST_CHECK(false); },  // Others started it.
             },
             transfer.way);
}

void Supply::Send(const CopyRef& ref, Copy& copy, const Waiter& waiter,
                  absl::Time now, Effects& effects) {
  ++copy.readers;
  copy.last_use = now;
  transfers_.Start(
      ref.key,
      HostToClient{space_.RangesOf(ref, copy), waiter.memfd, waiter.request},
      /*urgent=*/true, effects);
}

void Supply::Forget(ModelId id, absl::Time now, Effects& effects) {
  ModelEntry& entry = *copies_.FindModel(id);
  const std::string& name = entry.model->spec->name;
  for (uint32_t g = 0; g < entry.groups.size(); ++g) {
    GroupEntry& group = entry.groups[g];
    const GroupKey key = {id, GroupIndex(g)};
    FailNeeds(key, absl::NotFoundError(absl::StrCat(name, " was forgotten")));
    copies_.pageable().Forget(key);
    for (auto& [place, copy] : group.copies) {
      if (copy.spilling()) saver_.Orphan({key, place}, copy);
    }
    std::vector<SpillId> on_disk = group.damaged;
    if (group.spilled.has_value()) on_disk.push_back(*group.spilled);
    effects.unspill.insert(effects.unspill.end(), on_disk.begin(),
                           on_disk.end());
    // There is room on the disk again.
    if (!on_disk.empty()) disk_.RoomCame(now);
  }
}

// A restored image has been read.
void Supply::HostChecked(const Transfer& transfer, const absl::Status& read,
                         const Content& content, absl::Time now,
                         Effects& effects) {
  const CopyRef ref = {transfer.key, kHost};
  Copy& copy = copies_.At(ref);
  GroupEntry& group = *copies_.FindGroup(transfer.key);
  const Model& model = *copies_.FindModel(transfer.key.model)->model;
  if (restored_.Checked(transfer.key)) space_.Changed();
  absl::Status status = read;
  if (status.ok() &&
      content != model.spec->group_contents[transfer.key.group.number()]) {
    status = absl::DataLossError("its bytes changed while no hoistd ran");
  }
  if (status.ok()) {
    HostPresent(ref, copy, now, effects);
    copies_.Apply(copy, ResidencyEvent::kUse);  // No prefetch brought it.
    return SaveUnsaved(transfer.key);
  }
  HostAbsent(ref, copy, status, effects);
  needs_.Wake(transfer.key);
  if (group.on_disk()) return;  // The disk or the files have it.
  MarkLostIfGone(transfer.key, status, effects);
  FailNeeds(transfer.key, group.lost);
}

// The host has the only copy again.
void Supply::SaveUnsaved(GroupKey key) {
  const GroupEntry& group = *copies_.FindGroup(key);
  if (!group.unsaved()) return;
  quota_.Add(copies_.FindModel(key.model)->model->owner, Quota::kPublishedBytes,
             SpaceOf(*group.group));
  saver_.SaveSoon(key);
}

void Supply::HostFilled(const Transfer& transfer, const absl::Status& status,
                        absl::Time now, Effects& effects) {
  const CopyRef ref = {transfer.key, kHost};
  Copy& copy = copies_.At(ref);
  const SpillToHost* spill = transfer.by<SpillToHost>();
  if (status.ok()) {
    HostPresent(ref, copy, now, effects);
    if (transfer.by<FilesToHost>() == nullptr) KeepImage(ref, copy);
    return;
  }
  HostAbsent(ref, copy, status, effects);
  if (spill != nullptr && absl::IsDataLoss(status)) {
    // The store has quarantined the bytes. They are not tried again, and are
    // removed when the model is forgotten.
    GroupEntry& group = *copies_.FindGroup(transfer.key);
    copies_.SetSpilled(group, std::nullopt);
    group.damaged.push_back(spill->from);
    MarkLostIfGone(transfer.key, status, effects);
    if (!group.lost.ok()) return FailNeeds(transfer.key, group.lost);
  }
  FailNeeds(transfer.key, status);
}

void Supply::DeviceFilled(const Transfer& transfer, const Place& from,
                          const absl::Status& status, absl::Time now,
                          Effects& effects) {
  --copies_.At({transfer.key, from}).readers;
  space_.Changed();
  for (auto& [place, copy] : copies_.FindGroup(transfer.key)->copies) {
    if (copy.filling != transfer.id) continue;
    const CopyRef ref = {transfer.key, place};
    if (status.ok()) {
      copies_.Apply(copy, ResidencyEvent::kFillDone);
      space_.Weigh(ref, copy);
      copy.last_use = now;
      space_.KeepCopy(ref, copy, /*there=*/true);
      needs_.Wake(transfer.key);  // Others may be copied from it.
      Note(effects, copies_, EventKind::kCopyPresent, ref);
      return;
    }
    space_.FillFailed(ref, copy);
    Note(effects, copies_, EventKind::kCopyFailed, ref,
         std::string(status.message()));
    return FailNeed(ref, status);
  }
  HOIST_CHECK(false);  // A filling copy is neither dropped nor forgotten.
}

void Supply::Sent(const Transfer& transfer, const HostToClient& way,
                  const absl::Status& status, Effects& effects) {
  Copy& host = copies_.At({transfer.key, kHost});
  HOIST_CHECK(host.readers > 0);
  --host.readers;
  space_.Changed();
  effects.answers.push_back({way.request, status});
}

void Supply::MarkLostIfGone(GroupKey key, const absl::Status& why,
                            Effects& effects) {
  GroupEntry& group = *copies_.FindGroup(key);
  if (group.on_disk() || copies_.pageable().KeepOnly(key)) return;
  for (const auto& [place, copy] : group.copies) {
    if (place == kHost && copy.usable()) return;
  }
  group.lost = absl::DataLossError(absl::StrCat(
      copies_.NameOf(key), " is lost: ", std::string(why.message()),
      "; publish it again, or forget the model (`hoistctl evict "
      "--forget`)"));
  Note(effects, copies_, EventKind::kCopyLost, {key, {OnDisk(), false}},
       std::string(why.message()));
}

}  // namespace hoistd
