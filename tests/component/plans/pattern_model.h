// Models in which every byte encodes its place.
#ifndef HOIST_TESTS_COMPONENT_PLANS_PATTERN_MODEL_H_
#define HOIST_TESTS_COMPONENT_PLANS_PATTERN_MODEL_H_

#include <cstddef>
#include <cstdint>
#include <string>
#include <vector>

#include "hoist/hoist.h"

namespace hoistd::testing {

// The 8-byte word at `index` of a group; no two groups share one.
inline uint64_t PatternWord(uint64_t model, uint64_t group, uint64_t index) {
  uint64_t word = (model << 48) ^ (group << 32) ^ index;
  word *= 0x9E3779B97F4A7C15u;  // Odd: no two inputs meet.
  return word ^ (word >> 29);
}

// Publishes groups "g0", "g1", ... of so many bytes, each a multiple of 8.
inline hoist::Result<hoist::Model> PublishPattern(
    hoist::Session& session, uint64_t number,
    const std::vector<uint64_t>& bytes) {
  hoist::Result<hoist::Model> model =
      hoist::Status(hoist::Code::kInvalidArgument, "no groups");
  for (uint64_t g = 0; g < bytes.size(); ++g) {
    std::vector<uint64_t> words(bytes[g] / 8);
    for (uint64_t i = 0; i < words.size(); ++i) {
      words[i] = PatternWord(number, g, i);
    }
    hoist::PublishOptions options;
    options.model = "pattern-" + std::to_string(number);
    options.group = "g" + std::to_string(g);
    options.tensors = {{"w",
                        hoist::DType::kU64,
                        {static_cast<int64_t>(words.size())},
                        words.data()}};
    model = session.Publish(options);
    if (!model.ok()) return model;
  }
  return model;
}

// The number of words at `data` that are not the group's.
inline uint64_t WrongWords(const void* data, uint64_t number, uint64_t group,
                           uint64_t bytes) {
  const auto* words = static_cast<const uint64_t*>(data);
  uint64_t wrong = 0;
  for (uint64_t i = 0; i < bytes / 8; ++i) {
    wrong += words[i] != PatternWord(number, group, i);
  }
  return wrong;
}

}  // namespace hoistd::testing

#endif  // HOIST_TESTS_COMPONENT_PLANS_PATTERN_MODEL_H_
