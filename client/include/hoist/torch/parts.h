// Large blocks as several groups, so that a budget pays for a part of each. As
// in Python (hoist/nn/_tree/layout.py), so that the two share models. Internal
// to torch.h.
#ifndef HOIST_TORCH_PARTS_H_
#define HOIST_TORCH_PARTS_H_

#include <algorithm>
#include <cstdint>
#include <string>
#include <string_view>
#include <unordered_map>
#include <unordered_set>
#include <utility>
#include <vector>

#include "hoist/torch/module.h"

namespace hoist {
inline namespace v0 {
namespace torch {
namespace internal {

// Bytes of a block that has parts, and how many at most.
constexpr uint64_t kLargeBlock = 32 << 20;
constexpr uint64_t kMostParts = 16;

inline uint64_t BytesOf(const std::vector<size_t>& ranges,
                        const std::vector<Stored>& stored) {
  uint64_t bytes = 0;
  for (const size_t i : ranges) bytes += stored[i].to - stored[i].from;
  return bytes;
}

// Neighbours, each with 1 / kMostParts of the bytes or more.
inline std::vector<std::vector<size_t>> RunsOf(
    const std::vector<size_t>& ranges, const std::vector<Stored>& stored) {
  const uint64_t least = BytesOf(ranges, stored) / kMostParts;
  std::vector<std::vector<size_t>> runs;
  for (const size_t i : ranges) {
    if (runs.empty() || BytesOf(runs.back(), stored) >= least) {
      runs.emplace_back();
    }
    runs.back().push_back(i);
  }
  if (runs.size() > 1 && BytesOf(runs.back(), stored) < least) {
    auto& before = runs[runs.size() - 2];
    before.insert(before.end(), runs.back().begin(), runs.back().end());
    runs.pop_back();
  }
  return runs;
}

// Parts of "layers.0" are "layers.0/1", "layers.0/2", ...; a name that is taken
// gets a "'".
inline std::vector<StoredGroup> InParts(std::vector<StoredGroup> groups,
                                        const std::vector<Stored>& stored) {
  std::unordered_set<std::string> names;
  for (const StoredGroup& group : groups) names.insert(group.name);
  std::vector<StoredGroup> found;
  for (StoredGroup& group : groups) {
    if (BytesOf(group.stored, stored) < kLargeBlock) {
      found.push_back(std::move(group));
      continue;
    }
    auto runs = RunsOf(group.stored, stored);
    if (runs.size() < 2) {
      found.push_back(std::move(group));
      continue;
    }
    for (size_t at = 0; at < runs.size(); ++at) {
      std::string name = group.name + "/" + std::to_string(at + 1);
      while (!names.insert(name).second) name += "'";
      found.push_back({std::move(name), std::move(runs[at])});
    }
  }
  return found;
}

// The block of a part, by its name; other groups are blocks.
inline std::string_view BlockOf(std::string_view group) {
  std::string_view rest = group;
  while (!rest.empty() && rest.back() == '\'') rest.remove_suffix(1);
  const size_t slash = rest.rfind('/');
  if (slash == std::string_view::npos || slash + 1 == rest.size()) return group;
  const std::string_view number = rest.substr(slash + 1);
  const bool digits = std::all_of(number.begin(), number.end(), [](char one) {
    return one >= '0' && one <= '9';
  });
  return digits ? rest.substr(0, slash) : group;
}

// PlanOptions::blocks.
inline std::vector<uint32_t> BlocksOf(const Model& model) {
  std::unordered_map<std::string_view, uint32_t> number;
  std::vector<uint32_t> blocks;
  for (uint32_t g = 0; g < model.group_count(); ++g) {
    const auto block = static_cast<uint32_t>(number.size());
    blocks.push_back(
        number.try_emplace(BlockOf(model.group_name(g)), block).first->second);
  }
  return blocks;
}

// The group of that name, or all parts of the block. NotFound: neither.
inline Result<std::vector<uint32_t>> GroupsNamed(const Model& model,
                                                 const std::string& name) {
  Result<uint32_t> group = model.FindGroup(name);
  if (group.ok()) return std::vector<uint32_t>{*group};
  std::vector<uint32_t> parts;
  for (uint32_t g = 0; g < model.group_count(); ++g) {
    if (BlockOf(model.group_name(g)) == name) parts.push_back(g);
  }
  if (parts.empty()) return group.status();
  return parts;
}

}  // namespace internal
}  // namespace torch
}  // namespace v0
}  // namespace hoist

#endif  // HOIST_TORCH_PARTS_H_
