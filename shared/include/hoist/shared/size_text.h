// Sizes and rates in text, in one form for all of hoist.
#ifndef HOIST_SHARED_SIZE_TEXT_H_
#define HOIST_SHARED_SIZE_TEXT_H_

#include <cstdint>
#include <optional>
#include <string>
#include <string_view>

namespace hoist {

// "64GiB", "1.5 GiB", "4096", "55GB": a number and a unit out of B, KiB, MiB,
// GiB, TiB (powers of 1024), kB, MB, GB, TB (of 1000), or none for bytes. A
// fraction has at most nine digits; parts of a byte are dropped. nullopt:
// anything else, or more than 2^63 - 1 bytes.
std::optional<uint64_t> ParseSize(std::string_view text);

// As ParseSize with "/s" behind it: "55GB/s". "0" means unlimited to callers.
std::optional<uint64_t> ParseRate(std::string_view text);

// The inverse of ParseSize, or ParseRate, in the largest unit without a
// fraction.
std::string SizeText(uint64_t bytes);
std::string RateText(uint64_t bytes_per_second);

// For people: "1.4 GiB", "512 B".
std::string HumanBytes(uint64_t bytes);

}  // namespace hoist

#endif  // HOIST_SHARED_SIZE_TEXT_H_
