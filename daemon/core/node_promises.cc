// What of a device is spoken for, and who may have a copy beside it.
#include <algorithm>
#include <map>
#include <set>

#include "daemon/core/node.h"

namespace hoistd {

// Whether the copy may be leased, pinned or filled beside what plans were
// promised and have not leased yet. What is idle makes way and does not count.
absl::Status Node::CheckBesidePlans(const CopyRef& ref) const {
  const TierAt at = ref.place.at;
  if (at.tier != Tier::kDevice) return absl::OkStatus();
  const PromiseBook& book = plans_.promises(at.device);
  if (!book.any() || book.Promised(ref)) return absl::OkStatus();
  // At most this is held; what is counted below looks at every slab.
  const DeviceSpace& space = *spaces_[at.device.number()];
  std::map<Zone, uint64_t> most = book.ByZone();
  if (!book.IsFirm(ref)) {
    most[ZoneOf(ref)] += copies_.SpaceOf(ref.key);
  }
  uint64_t taken = 0;
  for (const auto& [zone, bytes] : space.allocated_by_zone()) {
    most[zone] = std::max(most[zone], bytes);
  }
  for (const auto& [zone, bytes] : most) taken += bytes;
  if (taken <= CapacityOf(at)) return absl::OkStatus();
  std::set<CopyRef> firm = book.FirmCopies();
  firm.insert(ref);
  taken = 0;
  for (const auto& [zone, bytes] :
       HeldByZone(at.device, firm, /*idle_is_held=*/false)) {
    taken += bytes;
  }
  if (taken <= CapacityOf(at)) return absl::OkStatus();
  return absl::ResourceExhaustedError(
      "the rest is promised to plans, as `hoistctl plans` shows");
}

bool Node::Busy(const Copy& copy) {
  if (copy.state == Residency::kAbsent) return false;
  return !copy.usable() || copy.leases > 0 || copy.pinned;
}

void Node::Weigh(const CopyRef& ref, const Copy& copy) {
  if (ref.place.at.tier != Tier::kDevice) return;
  if (!Busy(copy)) return plans_.SetIdle(ref);
  plans_.SetBusy(ref, ZoneOf(ref));
}

}  // namespace hoistd
