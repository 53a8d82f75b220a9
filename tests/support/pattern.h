// Bytes that are wrong at any other place.
#ifndef HOIST_TESTS_SUPPORT_PATTERN_H_
#define HOIST_TESTS_SUPPORT_PATTERN_H_

#include <cstddef>
#include <cstdint>
#include <span>
#include <vector>

namespace hoistd::testing {

// Each byte depends on its place and on `seed`.
void FillPattern(std::span<std::byte> bytes, uint64_t seed);
std::vector<std::byte> Pattern(uint64_t bytes, uint64_t seed);

}  // namespace hoistd::testing

#endif  // HOIST_TESTS_SUPPORT_PATTERN_H_
