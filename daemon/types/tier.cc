#include "daemon/types/tier.h"

#include "absl/strings/str_cat.h"
#include "hoist/shared/size_text.h"

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

std::string HumanBytes(uint64_t bytes) { return hoist::HumanBytes(bytes); }

}  // namespace hoistd
