// Sizes and rates as people write them.
#ifndef HOIST_DAEMON_CONFIG_SIZE_H_
#define HOIST_DAEMON_CONFIG_SIZE_H_

#include <cstdint>
#include <optional>

#include "absl/strings/string_view.h"

namespace hoistd {

// "64GiB", "512 MiB", "4096", "55GB": a whole number and a unit out of B, KiB,
// MiB, GiB, TiB (powers of 1024), kB, MB, GB, TB (of 1000), or none for bytes.
// nullopt: anything else, or more than 2^63 - 1 bytes.
std::optional<uint64_t> ParseSize(absl::string_view text);

// A size, or a share of some whole that is known later.
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

// "50%", of 1 to 100 whole percent, or as ParseSize. nullopt: anything else.
std::optional<SizeOrPercent> ParseSizeOrPercent(absl::string_view text);

// As ParseSize with "/s" behind it: "55GB/s". "0" means unlimited to callers.
std::optional<uint64_t> ParseRate(absl::string_view text);

}  // namespace hoistd

#endif  // HOIST_DAEMON_CONFIG_SIZE_H_
