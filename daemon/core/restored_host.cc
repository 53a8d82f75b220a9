#include "daemon/core/restored_host.h"

#include <algorithm>
#include <iterator>
#include <string>

#include "absl/strings/str_cat.h"
#include "daemon/base/status.h"
#include "hoist/shared/image_layout.h"

namespace hoistd {

absl::Status RestoredHost::Check(uint64_t offset, uint64_t bytes) const {
  const auto after = extents_.lower_bound(offset);
  const bool free =
      offset % hoist::kImageAlignment == 0 &&
      bytes <= options_.host_capacity_bytes &&
      offset <= options_.host_capacity_bytes - bytes &&
      (after == extents_.end() || after->first - offset >= bytes) &&
      (after == extents_.begin() ||
       std::prev(after)->first + std::prev(after)->second.bytes <= offset);
  if (free) return absl::OkStatus();
  return absl::InvalidArgumentError("it cannot lie where it was kept");
}

void RestoredHost::AddImage(GroupKey key, uint64_t offset) {
  const CopyRef ref = {key, kHost};
  Copy& copy = copies_.At(ref);
  copies_.Apply(copy, ResidencyEvent::kReserve);
  copy.owner = copies_.NewOwner(ref);
  copy.offset = offset;
  copies_.Fill(copy, transfers_.NewId());  // Nobody carries it out.
  extents_[offset] = {.bytes = copies_.SpaceOf(key), .image = key};
  if (!copies_.FindGroup(key)->on_disk()) unchecked_.insert(key);
}

absl::Status RestoredHost::AddPart(uint64_t offset, const PersistedPart& part) {
  const std::string name = absl::StrCat(part.bytes, " bytes of a file");
  const uint64_t space = PartSpace(part.bytes);
  if (part.bytes == 0 || part.from + part.bytes < part.from ||
      part.from % PartBook::kGranule != 0 ||
      part.bytes % PartBook::kGranule != 0) {
    return absl::InvalidArgumentError(absl::StrCat(name, " are no part"));
  }
  HOIST_RETURN_IF_ERROR(Annotate(Check(offset, space), name));
  Extent extent;
  extent.bytes = space;
  extent.owner = copies_.NewOwner();
  extent.filler = transfers_.NewId();
  const SheetKey sheet = {part.file, models_.ReadersOf(part.owner)};
  if (!space_.parts().Restore(sheet, part.from, part.bytes, offset,
                              extent.owner, extent.filler)) {
    return absl::AlreadyExistsError(absl::StrCat(name, " lie there twice"));
  }
  extents_[offset] = extent;
  return absl::OkStatus();
}

std::optional<std::vector<TransferId>> RestoredHost::Grow(uint64_t ready_bytes,
                                                          Effects& effects) {
  uint64_t ready = std::min(ready_bytes, options_.host_capacity_bytes);
  // An extent must not be given out in part.
  for (const auto& [offset, extent] : extents_) {
    if (offset < ready && offset + extent.bytes > ready) ready = offset;
  }
  ExtentMap& host = space_.host();
  if (ready <= host.bytes()) return std::nullopt;
  host.Grow(ready - host.bytes());
  std::vector<TransferId> parts;
  while (!extents_.empty() && extents_.begin()->first < host.bytes()) {
    const auto [offset, extent] = *extents_.begin();
    extents_.erase(extents_.begin());
    if (!extent.image.has_value()) {
      host.AllocateAt(offset, extent.bytes, extent.owner);
      parts.push_back(extent.filler);
      continue;
    }
    Copy& copy = copies_.At({*extent.image, kHost});
    host.AllocateAt(offset, extent.bytes, copy.owner);
    copies_.Fill(copy, transfers_.Start(*extent.image, CheckOnHost{offset},
                                        /*urgent=*/false, effects));
  }
  space_.Changed();
  return parts;
}

bool RestoredHost::Awaits(GroupKey key, const Copy& copy) const {
  const auto found = extents_.find(copy.offset);
  return found != extents_.end() && found->second.image == key;
}

uint64_t RestoredHost::UncheckedSpaceOf(User uid) const {
  uint64_t bytes = 0;
  for (const GroupKey key : unchecked_) {
    const ModelEntry* model = copies_.FindModel(key.model);
    if (model == nullptr || model->model->owner != uid) continue;
    bytes += copies_.SpaceOf(key);
  }
  return bytes;
}

uint64_t RestoredHost::unchecked_bytes() const {
  uint64_t bytes = 0;
  for (const GroupKey key : unchecked_) bytes += copies_.BytesOf(key);
  return bytes;
}

}  // namespace hoistd
