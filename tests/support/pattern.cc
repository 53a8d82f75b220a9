#include "tests/support/pattern.h"

#include <algorithm>
#include <cstring>

namespace hoistd::testing {

void FillPattern(std::span<std::byte> bytes, uint64_t seed) {
  for (uint64_t i = 0; i < bytes.size(); i += 8) {
    uint64_t word = (i + 1) * 0x9e3779b97f4a7c15 + seed;  // splitmix64.
    word = (word ^ (word >> 30)) * 0xbf58476d1ce4e5b9;
    word = (word ^ (word >> 27)) * 0x94d049bb133111eb;
    word ^= word >> 31;
    std::memcpy(bytes.data() + i, &word,
                std::min<uint64_t>(sizeof word, bytes.size() - i));
  }
}

std::vector<std::byte> Pattern(uint64_t bytes, uint64_t seed) {
  std::vector<std::byte> pattern(bytes);
  FillPattern(pattern, seed);
  return pattern;
}

}  // namespace hoistd::testing
