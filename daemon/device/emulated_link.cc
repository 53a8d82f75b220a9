#include "daemon/device/emulated_link.h"

#include <algorithm>

namespace hoistd {

absl::Time EmulatedLink::Book(uint64_t bytes, absl::Time ready) {
  if (bytes_per_second_ == 0) return ready + latency_;
  const absl::Duration busy = absl::Seconds(
      static_cast<double>(bytes) / static_cast<double>(bytes_per_second_));
  const absl::MutexLock lock(&mu_);
  free_at_ = std::max(free_at_, ready) + busy;
  return free_at_ + latency_;
}

}  // namespace hoistd
