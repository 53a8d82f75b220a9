#include "daemon/core/device_names.h"

#include "absl/strings/str_cat.h"

namespace hoistd {

DeviceNames::DeviceNames(const std::vector<DeviceInfo>& devices) {
  for (const DeviceInfo& device : devices) {
    in_place_.push_back(device.kind == DeviceKind::kInPlace);
    if (in_place_.back()) ++all_in_place_;
  }
}

bool DeviceNames::IsInPlace(TierAt at) const {
  return at.tier == Tier::kDevice && at.device.number() < in_place_.size() &&
         in_place_[at.device.number()];
}

std::string DeviceNames::Of(TierAt at) const {
  return IsInPlace(at) ? "the memory in place" : ToString(at);
}

std::string DeviceNames::On(TierAt at) const {
  return IsInPlace(at) ? "in place" : absl::StrCat("on ", ToString(at));
}

const char* DeviceNames::KeyOf(TierAt at) const {
  if (IsInPlace(at)) return "host.in_place";
  switch (at.tier) {
    case Tier::kDevice:
      return "device.pool";
    case Tier::kHost:
      return "host.pool";
    case Tier::kPageable:
      return "host.pageable";
    case Tier::kDisk:
      return "disk.spill_capacity";
  }
  return "?";
}

}  // namespace hoistd
