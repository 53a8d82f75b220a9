// The way back from the disk: host room for any image on disk.
//
// A published image that is not on disk cannot leave the host before its spill.
// If such images filled the host while the disk is full, both would deadlock:
// the host would wait for the disk, and the disk's images for the host. So host
// memory for the largest spilled image stays free, or holds only copies that
// can be reloaded.
#include <optional>

#include "absl/strings/str_cat.h"
#include "daemon/base/status.h"
#include "daemon/core/space.h"

namespace hoistd {

bool Space::HasWayBack() const {
  const uint64_t bytes = copies_.largest_spilled();
  if (host_.largest_free() >= bytes) return true;
  const uint64_t coming = options_.host_capacity_bytes - host_.bytes();
  const auto can_leave = [&](OwnerId owner) -> std::optional<double> {
    const CopyRef* ref = copies_.RefOf(owner);
    const bool clean = ref != nullptr
                           ? Clean(*ref)
                           : parts_.Idle(owner) || parts_.UsersOf(owner);
    return clean ? std::optional(0.0) : std::nullopt;
  };
  return host_.CheapestHole(bytes, coming, can_leave).has_value();
}

absl::Status Space::NoWayBack() const {
  return absl::ResourceExhaustedError(
      absl::StrCat(HumanBytes(copies_.largest_spilled()),
                   " of it is reserved for groups that only the disk holds"));
}

absl::StatusOr<uint64_t> Space::PlaceUnsaved(OwnerId owner, uint64_t bytes,
                                             uint64_t published,
                                             absl::Time now) {
  if (disk_.put_off()) return NoWayBack();
  HOIST_RETURN_IF_ERROR(MayCome(bytes, published, now));
  return PlaceOnHost(owner, bytes, SpaceClaim(), now);
}

// ResourceExhausted: it could not stay, so nothing should be evicted for it.
absl::Status Space::MayCome(uint64_t bytes, uint64_t published,
                            absl::Time now) const {
  const uint64_t back = copies_.largest_spilled();
  const bool may = back == 0 || MaySpill(now) || !Expendable().empty() ||
                   bytes + back + published <= options_.host_capacity_bytes;
  return may ? absl::OkStatus() : NoWayBack();
}

// It has its place; evicts what must leave for the way back. If none is beside
// it, it loses the place, and what leaves makes room for both.
absl::Status Space::KeepWayBack(uint64_t offset, uint64_t bytes,
                                absl::Time now) {
  const uint64_t back = copies_.largest_spilled();
  // A pool too small for both: this image is spilled next.
  const bool small = bytes + back > options_.host_capacity_bytes;
  if (HasWayBack() || (small && MaySpill(now) && !disk_.full())) {
    return absl::OkStatus();
  }
  Victims victims = HostHole(back, SpaceClaim(), now);
  const bool stays = victims.has_value();
  if (!stays) {
    host_.Free(offset);
    victims = HostHole(bytes + back, SpaceClaim(), now);
  }
  const bool evicted = victims && EvictAll(*victims, Leaving::ForRoom({}, now));
  if (evicted && stays) return absl::OkStatus();
  if (stays) host_.Free(offset);
  // No copy was dropped that may be read again at once: the spills' end is when
  // to try again.
  if (victims && !evicted) return absl::UnavailableError("waiting for spills");
  disk_.PutOff(now);
  return victims ? absl::UnavailableError("waiting for room") : NoWayBack();
}

}  // namespace hoistd
