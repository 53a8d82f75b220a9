// Promised device memory, and admission of copies beside it.
#include <algorithm>

#include "daemon/core/space.h"

namespace hoistd {

absl::Status Space::CheckReservations(const CopyRef& ref) const {
  const TierAt at = ref.place.at;
  if (at.tier != Tier::kDevice) return absl::OkStatus();
  const PromiseBook& book = promises(at.device);
  if (!book.any() || book.Promised(ref)) return absl::OkStatus();
  // An upper bound of what is held; the exact count below visits every slab.
  std::map<Zone, uint64_t> most = book.ByZone();
  if (!book.IsFirm(ref)) most[ZoneOf(ref)] += copies_.SpaceOf(ref.key);
  for (const auto& [zone, bytes] : device(at.device).allocated_by_zone()) {
    most[zone] = std::max(most[zone], bytes);
  }
  const auto sum = [](const std::map<Zone, uint64_t>& by_zone) {
    uint64_t taken = 0;
    for (const auto& [zone, bytes] : by_zone) taken += bytes;
    return taken;
  };
  if (sum(most) <= CapacityOf(at)) return absl::OkStatus();
  std::set<CopyRef> firm = book.FirmCopies();
  firm.insert(ref);
  if (sum(HeldByZone(at.device, firm, /*idle_is_held=*/false)) <=
      CapacityOf(at)) {
    return absl::OkStatus();
  }
  return absl::ResourceExhaustedError(
      "the rest is promised to plans, as `hoistctl plans` shows");
}

bool Space::Busy(const Copy& copy) {
  if (copy.state == Residency::kAbsent) return false;
  return !copy.usable() || copy.leases > 0 || copy.pinned;
}

void Space::Weigh(const CopyRef& ref, const Copy& copy) {
  if (ref.place.at.tier != Tier::kDevice) return;
  PromiseBook& book = promises_[ref.place.at.device.number()];
  if (!Busy(copy)) return book.SetIdle(ref);
  book.SetBusy(ref, ZoneOf(ref), copies_.SpaceOf(ref.key));
}

void Space::SetPinned(const CopyRef& ref, Copy& copy, bool pinned) {
  if (copy.pinned == pinned) return;
  copy.pinned = pinned;
  Weigh(ref, copy);
  persisted_.Add(PersistedPin{ref, pinned});
}

// The bytes of the copies, and of standing rings.
std::map<Zone, uint64_t> Space::ByZone(DeviceIndex device,
                                       const std::set<CopyRef>& copies) const {
  std::map<Zone, uint64_t> bytes = promises(device).rings();
  for (const CopyRef& ref : copies) {
    bytes[ZoneOf(ref)] += copies_.SpaceOf(ref.key);
  }
  return bytes;
}

std::optional<double> Space::Movable(OwnerId owner,
                                     const std::set<CopyRef>& firm) const {
  const CopyRef* ref = copies_.RefOf(owner);
  if (ref == nullptr || firm.contains(*ref)) return std::nullopt;
  return 0;
}

// What each zone withholds from others: its `firm` bytes, or slabs that cannot
// be given back, whichever is more.
std::map<Zone, uint64_t> Space::HeldByZone(DeviceIndex index,
                                           const std::set<CopyRef>& firm,
                                           bool idle_is_held) const {
  std::map<Zone, uint64_t> held = device(index).StuckBytes(
      !idle_is_held, [&](OwnerId owner) { return Movable(owner, firm); },
      [&](SlabId slab) { return slabs_.OpenedBy(index, slab); });
  for (const auto& [zone, bytes] : ByZone(index, firm)) {
    held[zone] = std::max(held[zone], bytes);
  }
  return held;
}

uint64_t Space::LostTo(DeviceIndex device, const Zone& own,
                       const std::set<CopyRef>& firm) const {
  std::map<Zone, uint64_t> taken = ByZone(device, firm);
  uint64_t lost = 0;
  for (const auto& [zone, bytes] :
       HeldByZone(device, firm, /*idle_is_held=*/false)) {
    if (zone != own) lost += bytes - taken[zone];
  }
  return lost;
}

absl::Status Space::CheckRing(DeviceIndex index, const Zone& own,
                              uint64_t bytes,
                              const std::set<CopyRef>& firm) const {
  const uint64_t needed = ByZone(index, firm)[own] + bytes;
  const auto fits = [&](bool idle_is_held) {
    uint64_t taken = needed;
    for (const auto& [zone, held] : HeldByZone(index, firm, idle_is_held)) {
      if (zone != own) taken += held;
    }
    return taken <= device(index).capacity();
  };
  if (!fits(/*idle_is_held=*/false)) return absl::ResourceExhaustedError("");
  return fits(/*idle_is_held=*/true) ? absl::OkStatus() : WaitsForIdle();
}

void Space::AskForRing(DeviceIndex index, const Zone& own,
                       const std::set<CopyRef>& firm, absl::Time now) {
  const Room room = RoomFor(
      index, {own, device(index).capacity()}, /*own=*/false,
      /*idle=*/true, [&](OwnerId owner) { return Movable(owner, firm); });
  AskToClose(index, room.idle, std::nullopt, now);
}

}  // namespace hoistd
