// Large blocks as several groups, so that a budget pays for a part of each. As
// in Python (hoist/nn/_tree/layout.py), so that the two share models. Internal
// to torch.h.
#ifndef HOIST_TORCH_PARTS_H_
#define HOIST_TORCH_PARTS_H_

#include <algorithm>
#include <cstdint>
#include <numeric>
#include <string>
#include <string_view>
#include <unordered_map>
#include <unordered_set>
#include <utility>
#include <vector>

#include "hoist/hoist.h"

namespace hoist {
inline namespace v0 {
namespace torch {
namespace internal {

// Bytes of a block that has parts, and how many at most.
constexpr uint64_t kLargeBlock = 32 << 20;
constexpr uint64_t kMostParts = 16;

// Positions of neighbours, in runs of 1 / kMostParts of the bytes or more.
inline std::vector<std::vector<size_t>> RunsOf(
    const std::vector<uint64_t>& bytes) {
  const uint64_t least =
      std::accumulate(bytes.begin(), bytes.end(), uint64_t{0}) / kMostParts;
  std::vector<std::vector<size_t>> runs;
  uint64_t size = least;
  for (size_t i = 0; i < bytes.size(); ++i) {
    if (size >= least) {
      runs.emplace_back();
      size = 0;
    }
    runs.back().push_back(i);
    size += bytes[i];
  }
  if (runs.size() > 1 && size < least) {
    auto& before = runs[runs.size() - 2];
    before.insert(before.end(), runs.back().begin(), runs.back().end());
    runs.pop_back();
  }
  return runs;
}

// Divides large groups, each a `name` and `items`, whose bytes are given. Parts
// of "layers.0" are "layers.0/1", "layers.0/2", ...; a name that is taken gets
// a "'".
template <typename Group, typename Item, typename Bytes>
std::vector<Group> InParts(std::vector<Group> groups,
                           std::vector<Item> Group::*items,
                           const Bytes& bytes_of) {
  std::unordered_set<std::string> names;
  for (const Group& group : groups) names.insert(group.name);
  std::vector<Group> found;
  for (Group& group : groups) {
    std::vector<uint64_t> bytes;
    for (const Item& item : group.*items) bytes.push_back(bytes_of(item));
    const auto runs = RunsOf(bytes);
    if (runs.size() < 2 || std::accumulate(bytes.begin(), bytes.end(),
                                           uint64_t{0}) < kLargeBlock) {
      found.push_back(std::move(group));
      continue;
    }
    for (size_t at = 0; at < runs.size(); ++at) {
      Group part;
      part.name = group.name + "/" + std::to_string(at + 1);
      while (!names.insert(part.name).second) part.name += "'";
      for (const size_t i : runs[at]) {
        (part.*items).push_back((group.*items)[i]);
      }
      found.push_back(std::move(part));
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
