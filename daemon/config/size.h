// A size, or a percentage of a total that is known later.
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

  // `whole`: the size of a pool. The split avoids an overflow of 100 times
  // that.
  uint64_t Of(uint64_t whole) const {
    return percent > 0 ? whole / 100 * percent + whole % 100 * percent / 100
                       : bytes;
  }
  bool operator==(const SizeOrPercent&) const = default;
};

// "50%" (1 to 100, whole percent), or as hoist::ParseSize. nullopt: anything
// else.
std::optional<SizeOrPercent> ParseSizeOrPercent(absl::string_view text);

}  // namespace hoistd

#endif  // HOIST_DAEMON_CONFIG_SIZE_H_
