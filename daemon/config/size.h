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

// As ParseSize with "/s" behind it: "55GB/s". "0" means unlimited to callers.
std::optional<uint64_t> ParseRate(absl::string_view text);

}  // namespace hoistd

#endif  // HOIST_DAEMON_CONFIG_SIZE_H_
