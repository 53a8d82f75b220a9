// Models in which every byte is a function of group and offset.
#ifndef HOIST_TESTS_BENCH_SYNTHETIC_H_
#define HOIST_TESTS_BENCH_SYNTHETIC_H_

#include <cstdint>
#include <string>
#include <vector>

#include "tests/bench/client.h"

namespace hoist::bench {

// The 8-byte word at `index` of a group. As bf16 all four parts are below 2, so
// that GEMMs over them stay finite.
inline uint64_t WordAt(uint64_t group, uint64_t index) {
  uint64_t word = (group << 40 ^ index) * 0x9E3779B97F4A7C15u;
  word ^= word >> 29;
  return word & 0xBFFFBFFFBFFFBFFFu;
}

// Sum of word[i] * (2 i + 1), mod 2^64: sensitive to the order of words.
uint64_t Checksum(const void* data, uint64_t bytes);

struct SyntheticSpec {
  uint32_t groups = 0;
  uint64_t group_bytes = 0;  // A multiple of 256.

  uint64_t bytes() const { return groups * group_bytes; }
};

struct Synthetic {
  Model model;
  std::vector<uint64_t> checksums;  // By group.
};

// Fills `words` with the group's contents.
void FillGroup(uint64_t group, std::vector<uint64_t>& words);

// Publishes the model, with one U8 tensor per group.
Synthetic Publish(const Session& session, const std::string& name,
                  const SyntheticSpec& spec);

// A safetensors file of U8 tensors "layers.<i>.weight".
void WriteFile(const std::string& path, const SyntheticSpec& spec);
Model RegisterFile(const Session& session, const std::string& name,
                   const std::string& path);

}  // namespace hoist::bench

#endif  // HOIST_TESTS_BENCH_SYNTHETIC_H_
