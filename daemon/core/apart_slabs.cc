#include "daemon/core/apart_slabs.h"

#include "absl/strings/str_cat.h"
#include "daemon/base/check.h"

namespace hoistd {

ApartSlabs::ApartSlabs(uint64_t begin, uint64_t bytes,
                       ApartDescriptors* descriptors)
    : begin_(begin), descriptors_(descriptors), addresses_(bytes) {}

// A memfd has a second, read-only descriptor; a writable one has none.
uint64_t ApartSlabs::DescriptorsOf(Backing backing) {
  return backing == Backing::kMemfd ? 2 : 1;
}

absl::Status ApartSlabs::MayAdd(Backing backing) const {
  if (descriptors_ == nullptr ||
      descriptors_->used + DescriptorsOf(backing) <= descriptors_->most) {
    return absl::OkStatus();
  }
  return absl::ResourceExhaustedError(absl::StrCat(
      "pieces that are read in place and arenas keep ", descriptors_->used,
      " of the ", descriptors_->most,
      " descriptors that they may; raise hoistd's hard "
      "limit of them (systemd: LimitNOFILE), or read less in place"));
}

void ApartSlabs::SetFree(uint64_t offset, const Slab& slab) {
  free_.insert(offset);
  if (slab.zone.writable) free_writable_ += slab.spec.bytes;
  free_by_kind_[KindOf(slab)].insert(offset);
}

void ApartSlabs::UnsetFree(uint64_t offset, const Slab& slab) {
  free_.erase(offset);
  if (slab.zone.writable) free_writable_ -= slab.spec.bytes;
  const auto kind = free_by_kind_.find(KindOf(slab));
  kind->second.erase(offset);
  if (kind->second.empty()) free_by_kind_.erase(kind);
}

ApartSlabs::Slab& ApartSlabs::Insert(const Zone& zone, const SlabSpec& spec) {
  offsets_[spec.id] = spec.offset;
  Slab& slab = slabs_[spec.offset];
  slab.zone = zone;
  slab.spec = spec;
  if (descriptors_ != nullptr)
    descriptors_->used += DescriptorsOf(spec.backing);
  return slab;
}

const ApartSlabs::Slab* ApartSlabs::Take(const Zone& zone, uint64_t bytes,
                                         OwnerId owner) {
  auto kind = free_by_kind_.find({zone, bytes});
  if (kind == free_by_kind_.end()) {
    kind = free_by_kind_.find({zone, bytes, /*zeroing=*/true});
  }
  if (kind == free_by_kind_.end()) return nullptr;
  const uint64_t offset = *kind->second.begin();
  Slab& slab = slabs_.at(offset);
  UnsetFree(offset, slab);
  slab.owner = owner;
  used_ += bytes;
  return &slab;
}

const ApartSlabs::Slab* ApartSlabs::Add(const Zone& zone, SlabId id,
                                        uint64_t bytes, OwnerId owner) {
  const auto offset = addresses_.Allocate(bytes, owner);
  if (!offset.has_value()) return nullptr;
  SlabSpec spec;
  spec.id = id;
  spec.offset = begin_ + *offset;
  spec.bytes = bytes;
  spec.backing = zone.backing;
  spec.apart = true;
  spec.writable = zone.writable;
  Slab& slab = Insert(zone, spec);
  slab.owner = owner;
  used_ += bytes;
  return &slab;
}

void ApartSlabs::Made(uint64_t offset) {
  Slab& slab = slabs_.at(offset);
  HOIST_CHECK(slab.coming);
  slab.coming = false;
  if (!slab.owner.has_value()) SetFree(offset, slab);  // Given up meanwhile.
}

absl::Status ApartSlabs::Restore(const Zone& zone, const SlabSpec& spec) {
  if (!spec.apart || spec.writable != zone.writable || spec.offset < begin_ ||
      spec.backing != zone.backing ||
      !addresses_.IsFree(spec.offset - begin_, spec.bytes) ||
      offsets_.contains(spec.id)) {
    return absl::InvalidArgumentError(absl::StrCat(
        "a slab of ", spec.bytes, " bytes cannot lie at ", spec.offset));
  }
  addresses_.AllocateAt(spec.offset - begin_, spec.bytes, OwnerId());
  Slab& slab = Insert(zone, spec);
  slab.coming = false;
  SetFree(spec.offset, slab);
  return absl::OkStatus();
}

absl::Status ApartSlabs::RestoreAt(const Zone& zone, uint64_t offset,
                                   uint64_t bytes, OwnerId owner) {
  const auto found = slabs_.find(offset);
  if (found == slabs_.end() || !free_.contains(offset) ||
      found->second.zone != zone || found->second.spec.bytes != bytes) {
    return absl::InvalidArgumentError(
        absl::StrCat(bytes, " bytes cannot lie at ", offset));
  }
  UnsetFree(offset, found->second);
  found->second.owner = owner;
  used_ += bytes;
  return absl::OkStatus();
}

void ApartSlabs::Free(uint64_t offset) {
  Slab& slab = slabs_.at(offset);
  HOIST_CHECK(slab.owner.has_value());
  slab.owner.reset();
  used_ -= slab.spec.bytes;
  if (!slab.coming) SetFree(offset, slab);
}

void ApartSlabs::FreeToZero(uint64_t offset) {
  Slab& slab = slabs_.at(offset);
  HOIST_CHECK(slab.ready() && slab.zone.writable);
  if (slab.owner.has_value()) {
    slab.owner.reset();
    used_ -= slab.spec.bytes;
  } else {
    UnsetFree(offset, slab);
  }
  slab.zeroing = true;
  SetFree(offset, slab);
}

void ApartSlabs::Zeroed(uint64_t offset) {
  Slab& slab = slabs_.at(offset);
  HOIST_CHECK(slab.zeroing);
  if (!slab.owner.has_value()) UnsetFree(offset, slab);
  slab.zeroing = false;
  if (!slab.owner.has_value()) SetFree(offset, slab);
}

void ApartSlabs::Remove(uint64_t offset) {
  const auto found = slabs_.find(offset);
  HOIST_CHECK(found != slabs_.end());
  const Slab& slab = found->second;
  if (descriptors_ != nullptr) {
    descriptors_->used -= DescriptorsOf(slab.spec.backing);
  }
  if (slab.owner.has_value()) {
    HOIST_CHECK(!slab.ready());
    used_ -= slab.spec.bytes;
  } else if (!slab.coming) {
    UnsetFree(offset, slab);
  }
  offsets_.erase(slab.spec.id);
  slabs_.erase(found);
  addresses_.Free(offset - begin_);
}

const ApartSlabs::Slab* ApartSlabs::At(uint64_t offset) const {
  const auto found = slabs_.find(offset);
  return found == slabs_.end() ? nullptr : &found->second;
}

const ApartSlabs::Slab* ApartSlabs::Find(SlabId id) const {
  const auto found = offsets_.find(id);
  return found == offsets_.end() ? nullptr : &slabs_.at(found->second);
}

std::optional<Hole> ApartSlabs::Cheapest(const Zone& zone, uint64_t bytes,
                                         KeepValueFn value) const {
  std::optional<Hole> best;
  for (const auto& [offset, slab] : slabs_) {
    if (slab.zone != zone || slab.spec.bytes != bytes || slab.coming ||
        !slab.owner.has_value()) {
      continue;
    }
    const std::optional<double> worth = value(*slab.owner);
    if (!worth.has_value()) continue;
    if (best.has_value() && best->value <= *worth) continue;
    best = Hole{offset, {*slab.owner}, *worth};
  }
  return best;
}

void ApartSlabs::Check() const {
  addresses_.CheckTotals();
  uint64_t bytes = 0, used = 0, writable = 0;
  size_t free = 0;
  for (const auto& [offset, slab] : slabs_) {
    HOIST_CHECK(offset >= begin_ && slab.spec.offset == offset);
    HOIST_CHECK(slab.spec.apart && slab.zone.apart);
    HOIST_CHECK(slab.spec.writable == slab.zone.writable);
    HOIST_CHECK(!slab.zeroing || (slab.zone.writable && !slab.coming));
    HOIST_CHECK(offsets_.at(slab.spec.id) == offset);
    bytes += slab.spec.bytes;
    if (slab.owner.has_value()) used += slab.spec.bytes;
    const bool is_free = !slab.coming && !slab.owner.has_value();
    HOIST_CHECK(free_.contains(offset) == is_free);
    if (is_free) {
      HOIST_CHECK(free_by_kind_.at(KindOf(slab)).contains(offset));
      if (slab.zone.writable) writable += slab.spec.bytes;
      ++free;
    }
  }
  HOIST_CHECK(free == free_.size() && offsets_.size() == slabs_.size());
  HOIST_CHECK(used == used_ && bytes == addresses_.used());
  HOIST_CHECK(writable == free_writable_);
}

}  // namespace hoistd
