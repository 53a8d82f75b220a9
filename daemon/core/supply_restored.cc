// The last hoistd's host contents: already there, and usable once the pool has
// grown there.
#include <algorithm>
#include <iterator>
#include <string>

#include "absl/strings/str_cat.h"
#include "daemon/base/status.h"
#include "daemon/core/supply.h"
#include "hoist/shared/image_layout.h"

namespace hoistd {

absl::Status Supply::CheckRestored(uint64_t offset, uint64_t bytes) const {
  const auto after = restored_.lower_bound(offset);
  const bool free =
      offset % hoist::kImageAlignment == 0 &&
      bytes <= options_.host_capacity_bytes &&
      offset <= options_.host_capacity_bytes - bytes &&
      (after == restored_.end() || after->first - offset >= bytes) &&
      (after == restored_.begin() ||
       std::prev(after)->first + std::prev(after)->second.bytes <= offset);
  if (free) return absl::OkStatus();
  return absl::InvalidArgumentError("it cannot lie where it was kept");
}

void Supply::RestoreImage(GroupKey key, uint64_t offset) {
  const CopyRef ref = {key, kHost};
  Copy& copy = copies_.At(ref);
  copies_.Apply(copy, ResidencyEvent::kReserve);
  copy.owner = copies_.NewOwner(ref);
  copy.offset = offset;
  copy.filling = transfers_.NewId();  // Nobody carries it out.
  restored_[offset] = {.bytes = copies_.SpaceOf(key), .image = key};
  if (!copies_.FindGroup(key)->on_disk()) unchecked_.insert(key);
}

absl::Status Supply::RestorePart(uint64_t offset, const PersistedPart& part) {
  const std::string name = absl::StrCat(part.bytes, " bytes of a file");
  const uint64_t space = PartSpace(part.bytes);
  if (part.bytes == 0 || part.from + part.bytes < part.from ||
      part.from % PartBook::kGranule != 0 ||
      part.bytes % PartBook::kGranule != 0) {
    return absl::InvalidArgumentError(absl::StrCat(name, " are no part"));
  }
  HOIST_RETURN_IF_ERROR(Annotate(CheckRestored(offset, space), name));
  Restored extent;
  extent.bytes = space;
  extent.owner = copies_.NewOwner();
  extent.filler = transfers_.NewId();
  const SheetKey sheet = {part.file, models_.ReadersOf(part.owner)};
  if (!space_.parts().Restore(sheet, part.from, part.bytes, offset,
                              extent.owner, extent.filler)) {
    return absl::AlreadyExistsError(absl::StrCat(name, " lie there twice"));
  }
  restored_[offset] = extent;
  return absl::OkStatus();
}

bool Supply::GrowHost(uint64_t ready_bytes, absl::Time now, Effects& effects) {
  uint64_t ready = std::min(ready_bytes, options_.host_capacity_bytes);
  // A restored extent must not be given out in part.
  for (const auto& [offset, extent] : restored_) {
    if (offset < ready && offset + extent.bytes > ready) ready = offset;
  }
  if (ready <= space_.host().bytes()) return false;
  space_.host().Grow(ready - space_.host().bytes());
  PlaceRestored(now, effects);
  space_.Changed();
  return true;
}

// Restores what the pool has grown over: images once verified.
void Supply::PlaceRestored(absl::Time now, Effects& effects) {
  while (!restored_.empty() &&
         restored_.begin()->first < space_.host().bytes()) {
    const auto [offset, extent] = *restored_.begin();
    restored_.erase(restored_.begin());
    if (!extent.image.has_value()) {
      space_.host().AllocateAt(offset, extent.bytes, extent.owner);
      PartsFilled(extent.filler, absl::OkStatus(), now, effects);
      continue;
    }
    Copy& copy = copies_.At({*extent.image, kHost});
    space_.host().AllocateAt(offset, extent.bytes, copy.owner);
    copy.filling = transfers_.Start(*extent.image, CheckOnHost{offset},
                                    /*urgent=*/false, effects);
  }
}

bool Supply::AwaitsPool(GroupKey key, const Copy& copy) const {
  const auto found = restored_.find(copy.offset);
  return found != restored_.end() && found->second.image == key;
}

uint64_t Supply::UncheckedBytesOf(User uid) const {
  uint64_t bytes = 0;
  for (const GroupKey key : unchecked_) {
    const ModelEntry* model = copies_.FindModel(key.model);
    if (model == nullptr || model->model->owner != uid) continue;
    bytes += SpaceOf(*model->groups[key.group.number()].group);
  }
  return bytes;
}

uint64_t Supply::SaveAll(absl::Time now, Effects& effects) {
  uint64_t left = saver_.SaveAll(now, effects);
  // Whether they must be written is not known yet.
  for (const GroupKey key : unchecked_) {
    const ModelEntry* model = copies_.FindModel(key.model);
    if (model == nullptr) continue;
    left += model->groups[key.group.number()].group->image_bytes;
  }
  return left;
}

}  // namespace hoistd
