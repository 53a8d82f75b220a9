#include "daemon/core/pool_policy.h"

#include <algorithm>
#include <utility>

namespace hoistd {

std::optional<uint64_t> PoolPolicy::Look(uint64_t total, uint64_t others,
                                         uint64_t headroom, absl::Time now) {
  const uint64_t taken = others + std::min(headroom, UINT64_MAX - others);
  const uint64_t room = std::min(pool_, total - std::min(total, taken));
  const uint64_t seen = std::max(room, std::exchange(last_, room));
  const uint64_t step = StepOf(headroom);
  if (seen < capacity_ && capacity_ - seen >= step) return Become(seen);
  if (room <= capacity_ || (room - capacity_ < step && room < pool_)) {
    calm_since_ = absl::InfiniteFuture();
    return std::nullopt;
  }
  if (calm_since_ == absl::InfiniteFuture()) {
    calm_since_ = now;
    least_ = room;
  }
  least_ = std::min(least_, room);
  if (now - calm_since_ < kCalm) return std::nullopt;
  return Become(least_);
}

std::optional<uint64_t> PoolPolicy::Become(uint64_t capacity) {
  calm_since_ = absl::InfiniteFuture();
  capacity_ = capacity;
  return capacity;
}

}  // namespace hoistd
