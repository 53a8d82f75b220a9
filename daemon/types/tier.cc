#include "daemon/types/tier.h"

#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"

namespace hoistd {

std::string ToString(TierAt at) {
  switch (at.tier) {
    case Tier::kDevice:
      return absl::StrCat("device ", at.device.number());
    case Tier::kHost:
      return "host";
    case Tier::kPageable:
      return "pageable";
    case Tier::kDisk:
      return "disk";
  }
  return "?";
}

std::string HumanBytes(uint64_t bytes) {
  static constexpr const char* kUnits[] = {"KiB", "MiB", "GiB", "TiB"};
  if (bytes < 1024) return absl::StrCat(bytes, " B");
  double value = static_cast<double>(bytes) / 1024;
  int unit = 0;
  while (value >= 1024 && unit < 3) {
    value /= 1024;
    ++unit;
  }
  return absl::StrFormat("%.1f %s", value, kUnits[unit]);
}

}  // namespace hoistd
