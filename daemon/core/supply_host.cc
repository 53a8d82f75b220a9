// The host tier: a copy's space and bytes there.
#include <algorithm>
#include <utility>

#include "daemon/base/check.h"
#include "daemon/core/supply.h"
#include "daemon/model/model_name.h"

namespace hoistd {

// Whether the group's host copy consists of parts of sheets. Else it is an
// image: published, or empty.
bool Supply::InParts(GroupKey key) const {
  const GroupEntry& group = *copies_.FindGroup(key);
  return group.in_files && !group.group->runs.empty();
}

// Gives the absent copy space and has it filled; false: none now, see
// need.blocked. Bytes that others brought may complete it at once.
bool Supply::BringToHost(const CopyRef& ref, Copy& copy, Need& need,
                         absl::Time now, Effects& effects) {
  if (InParts(ref.key)) return BringParts(ref, copy, need, now, effects);
  if (!Reserve(ref, copy, need, now, effects)) return false;
  StartHostFill(ref, copy, need.urgent, effects);
  return true;
}

void Supply::StartHostFill(const CopyRef& ref, Copy& copy, bool urgent,
                           Effects& effects) {
  const GroupEntry& group = *copies_.FindGroup(ref.key);
  TransferWay way = FilesToHost();  // For an empty group.
  if (const auto from = copies_.pageable().Take(ref.key)) {
    way = PageableToHost{*from, copy.offset};
  } else if (group.spilled.has_value()) {
    way = SpillToHost{*group.spilled, copy.offset};
  } else {
    HOIST_CHECK(group.in_files);
  }
  copies_.Fill(copy,
               transfers_.Start(ref.key, std::move(way), urgent, effects));
}

bool Supply::BringParts(const CopyRef& ref, Copy& copy, Need& need,
                        absl::Time now, Effects& effects) {
  if (need.tried_at == space_.epoch()) return false;  // Nothing has changed.
  const uint64_t epoch = space_.epoch();
  const GroupEntry& group = *copies_.FindGroup(ref.key);
  const std::vector<SheetKey> sheets = space_.SheetsOf(ref.key.model);
  PartBook& parts = space_.parts();
  // Present parts now stay: eviction spares those that an absent copy uses.
  const std::vector<SheetRange> missing =
      parts.Join(ref.key, *group.group, sheets);
  const absl::StatusOr<std::vector<SheetRead>> placed =
      space_.PlaceSpans(sheets, missing, ClaimOf(need), now);
  FollowSpace(effects);
  if (!placed.ok()) {
    space_.LeaveParts(ref.key);
    need.blocked = {placed.status(), OnHost(), PartBook::BytesOf(missing)};
    need.tried_at = epoch;
    return false;
  }
  copies_.Apply(copy, ResidencyEvent::kReserve);
  copy.last_use = now;
  if (!missing.empty()) {
    const TransferId filler =
        transfers_.Start(ref.key, FilesToHost{*placed}, need.urgent, effects);
    for (const SheetRead& read : *placed) parts.Add(ref.key, read, filler);
  }
  PartsMayBeThere(ref, copy, now, effects);
  if (!need.urgent) return true;
  // Somebody now waits for what others prefetch.
  for (const TransferId filler : parts.FillersOf(ref.key)) {
    transfers_.Hurry(filler, effects);
  }
  return true;
}

// Completes the filling copy if none of its parts is being filled any more.
void Supply::PartsMayBeThere(const CopyRef& ref, Copy& copy, absl::Time now,
                             Effects& effects) {
  const std::vector<TransferId> fillers = space_.parts().FillersOf(ref.key);
  if (!fillers.empty()) {
    copies_.Fill(copy, fillers.front());
    return;
  }
  HostPresent(ref, copy, now, effects);
}

void Supply::HostPresent(const CopyRef& ref, Copy& copy, absl::Time now,
                         Effects& effects) {
  copies_.Apply(copy, ResidencyEvent::kFillDone);
  copy.last_use = now;
  if (space_.parts().Has(ref.key)) space_.parts().Settle(ref.key);
  space_.Changed();  // It can be evicted now.
  needs_.Wake(ref.key);
  Note(effects, copies_, EventKind::kCopyPresent, ref);
}

void Supply::HostAbsent(const CopyRef& ref, Copy& copy,
                        const absl::Status& status, Effects& effects) {
  space_.FillFailed(ref, copy);
  Note(effects, copies_, EventKind::kCopyFailed, ref,
       std::string(status.message()));
}

// The end of a read. Its parts may serve several copies, perhaps none of the
// group that requested them.
void Supply::PartsFilled(TransferId filler, const absl::Status& status,
                         absl::Time now, Effects& effects) {
  if (status.ok()) KeepParts(filler);
  std::vector<uint64_t> freed;
  const std::vector<GroupKey> users =
      status.ok() ? space_.parts().Filled(filler, freed)
                  : space_.parts().Failed(filler, freed);
  space_.FreeExtents(freed);
  for (const GroupKey key : users) {
    const CopyRef ref = {key, kHost};
    Copy& copy = copies_.At(ref);
    if (status.ok()) {
      PartsMayBeThere(ref, copy, now, effects);
    } else {
      HostAbsent(ref, copy, status, effects);
      FailNeeds(key, status);
    }
  }
}

// A restored part is already recorded.
void Supply::KeepParts(TransferId filler) {
  if (!options_.keeps) return;
  for (const PartBook::Filling& part : space_.parts().FilledBy(filler)) {
    if (part.restored) continue;
    persisted_.Add(PersistedOnHost{
        part.host_offset,
        PersistedPart{part.sheet.file, models_.ReaderOf(part.sheet.readers),
                      part.from, part.bytes}});
  }
}

void Supply::Received(GroupKey key, OwnerId owner, uint64_t offset,
                      absl::Time now, Effects& effects) {
  const CopyRef ref = {key, kHost};
  Copy& copy = copies_.At(ref);
  copies_.Apply(copy, ResidencyEvent::kAdopt);
  copy.owner = owner;
  copy.offset = offset;
  copy.last_use = now;
  copies_.SetOwner(owner, ref);
  KeepImage(ref, copy);
  // A group that ends with its session ends with a power cut, too.
  if (!EndsWith(copies_.FindModel(key.model)->model->spec->name)) {
    saver_.SaveSoon(key);
  }
  space_.Changed();
  Note(effects, copies_, EventKind::kCopyPresent, ref, "published");
}

bool Supply::GrowHost(uint64_t ready_bytes, absl::Time now, Effects& effects) {
  const auto parts = restored_.Grow(ready_bytes, effects);
  if (!parts.has_value()) return false;
  for (const TransferId filler : *parts) {
    PartsFilled(filler, absl::OkStatus(), now, effects);
  }
  return true;
}

// What is not verified yet may have to be written.
uint64_t Supply::SaveAll(absl::Time now, Effects& effects) {
  return saver_.SaveAll(now, effects) + restored_.unchecked_bytes();
}

void Supply::KeepImage(const CopyRef& ref, const Copy& copy) {
  persisted_.Add(PersistedOnHost{
      copy.offset,
      PersistedImage{copies_.FindModel(ref.key.model)->model, ref.key.group}});
}

}  // namespace hoistd
