#include "daemon/core/headroom.h"

#include <optional>

namespace hoistd {

void Headroom::Keep(absl::Time now, Effects& effects) {
  if (looked_at_ == space_.epoch()) return;
  for (uint32_t d = 0; d < space_.devices(); ++d) {
    if (space_.device(DeviceIndex(d)).over() > 0) {
      Keep(DeviceIndex(d), now, effects);
    }
  }
  looked_at_ = space_.epoch();
}

void Headroom::Keep(DeviceIndex index, absl::Time now, Effects& effects) {
  DeviceSpace& device = space_.device(index);
  Want none;  // No zone's: slabs of every zone are another's.
  if (const PromiseBook& book = space_.promises(index); book.any()) {
    none.promised = book.ByZone();
  }
  const auto opened = [&](SlabId slab) {
    return space_.slabs().OpenedBy(index, slab);
  };
  const SpaceClaim claim = {.urgent = true};
  const auto worth = [&](OwnerId owner) {
    return space_.ValueOf(owner, claim, now);
  };
  const auto room = [&](bool idle) {
    return device.RoomElsewhere(none, /*own=*/true, idle, worth, opened);
  };
  // Device copies are always clean.
  space_.EvictAll(room(/*idle=*/false).victims, {Leaving::Why::kHeadroom, now});
  device.ReleaseSlabs(none, opened);
  if (device.over() == 0) return;
  space_.AskToClose(index, room(/*idle=*/true).idle, std::nullopt, now);
  reclaim_.AskForRoom(index, device.over(), {Loan::Why::kHeadroom, now},
                      effects);
}

}  // namespace hoistd
