// Rounds sizes to a multiple. The caller keeps the sum below 2^64.
#ifndef HOIST_DAEMON_BASE_ROUND_H_
#define HOIST_DAEMON_BASE_ROUND_H_

#include <cstdint>

namespace hoistd {

constexpr uint64_t RoundUp(uint64_t value, uint64_t multiple) {
  return (value + multiple - 1) / multiple * multiple;
}

constexpr uint64_t RoundDown(uint64_t value, uint64_t multiple) {
  return value / multiple * multiple;
}

}  // namespace hoistd

#endif  // HOIST_DAEMON_BASE_ROUND_H_
