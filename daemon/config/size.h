// A size, or a share of some whole that is known later.
#ifndef HOIST_DAEMON_CONFIG_SIZE_H_
#define HOIST_DAEMON_CONFIG_SIZE_H_

#include <cstdint>
#include <optional>

#include "absl/strings/string_view.h"

namespace hoistd {

struct SizeOrPercent {
  uint64_t bytes = 0;
  uint32_t percent =
      0;  // Where it is not 0, of the whole; `bytes` is not used.

  // `whole` is a pool's size: far from where 100 times it would overflow.
  uint64_t Of(uint64_t whole) const {
    return percent > 0 ? whole / 100 * percent + whole % 100 * percent / 100
                       : bytes;
  }
  bool operator==(const SizeOrPercent&) const = default;
};

// "50%", of 1 to 100 whole percent, or as hoist::ParseSize. nullopt: anything
// else.
std::optional<SizeOrPercent> ParseSizeOrPercent(absl::string_view text);

}  // namespace hoistd

#endif  // HOIST_DAEMON_CONFIG_SIZE_H_
