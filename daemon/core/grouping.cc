#include "daemon/core/grouping.h"

#include <algorithm>
#include <map>
#include <optional>
#include <utility>

#include "absl/container/flat_hash_map.h"
#include "absl/container/flat_hash_set.h"
#include "absl/strings/ascii.h"
#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "absl/strings/str_split.h"
#include "absl/strings/string_view.h"
#include "daemon/base/status.h"
#include "daemon/core/safetensors.h"

namespace hoistd {
namespace {

using Parts = std::vector<absl::string_view>;

bool IsNumber(absl::string_view part) {
  return !part.empty() &&
         std::all_of(part.begin(), part.end(), absl::ascii_isdigit);
}

// The place of the first numbered component before the last one.
std::optional<size_t> FirstNumber(const Parts& parts) {
  for (size_t i = 0; i + 1 < parts.size(); ++i) {
    if (IsNumber(parts[i])) return i;
  }
  return std::nullopt;
}

std::string Prefix(const Parts& parts, size_t count) {
  return absl::StrJoin(parts.begin(), parts.begin() + count, ".");
}

// Less by components; numbers by value, so that 2 comes before 10.
bool NaturalLess(absl::string_view a, absl::string_view b) {
  const Parts x = absl::StrSplit(a, '.');
  const Parts y = absl::StrSplit(b, '.');
  for (size_t i = 0; i < std::min(x.size(), y.size()); ++i) {
    if (x[i] == y[i]) continue;
    if (!IsNumber(x[i]) || !IsNumber(y[i])) return x[i] < y[i];
    if (x[i].size() != y[i].size()) return x[i].size() < y[i].size();
    return x[i] < y[i];
  }
  return x.size() < y.size();
}

// 0: embeds; 1: numbered blocks; 2: what comes after them.
int Rank(absl::string_view name) {
  const Parts parts = absl::StrSplit(name, '.');
  if (std::any_of(parts.begin(), parts.end(), IsNumber)) return 1;
  for (const absl::string_view part : parts) {
    if (absl::StrContains(part, "embed") || absl::StrContains(part, "patch") ||
        part == "wte" || part == "wpe" || part == "shared" ||
        part == "conv_in" || part == "stem") {
      return 0;
    }
  }
  return 2;
}

// "model.layers" and "h" for names like "model.layers.3.x" and "h.0.y": what
// precedes the number. Tensors beside such a list are told apart one component
// further down than the list's parents.
size_t SharedDepth(const std::vector<Parts>& names, const Parts& parts) {
  size_t depth = 0;
  for (const Parts& other : names) {
    const std::optional<size_t> number = FirstNumber(other);
    if (!number.has_value() || *number == 0) continue;
    size_t same = 0;  // Components of the list's parents that are ours too.
    while (same + 1 < *number && same + 1 < parts.size() &&
           other[same] == parts[same]) {
      ++same;
    }
    depth = std::max(depth, same);
  }
  return depth;
}

std::vector<NamedGroup> ByKey(const std::vector<std::string>& tensors,
                              const std::vector<std::string>& keys) {
  std::map<std::string, size_t> index;
  std::vector<NamedGroup> groups;
  for (size_t i = 0; i < tensors.size(); ++i) {
    const auto [at, is_new] = index.emplace(keys[i], groups.size());
    if (is_new) groups.push_back({keys[i], {}});
    groups[at->second].tensors.push_back(tensors[i]);
  }
  std::stable_sort(groups.begin(), groups.end(),
                   [](const NamedGroup& a, const NamedGroup& b) {
                     const int x = Rank(a.name), y = Rank(b.name);
                     return x != y ? x < y : NaturalLess(a.name, b.name);
                   });
  return groups;
}

std::vector<NamedGroup> ByBlock(const std::vector<std::string>& tensors) {
  // Only one name a numbered list is needed to know the lists.
  std::vector<Parts> lists;
  absl::flat_hash_set<std::string> seen;
  for (const std::string& tensor : tensors) {
    Parts parts = absl::StrSplit(tensor, '.');
    const std::optional<size_t> number = FirstNumber(parts);
    if (!number.has_value()) continue;
    if (seen.insert(Prefix(parts, *number)).second) {
      lists.push_back(std::move(parts));
    }
  }
  std::vector<std::string> keys;
  for (const std::string& tensor : tensors) {
    const Parts parts = absl::StrSplit(tensor, '.');
    if (parts.size() == 1) {
      keys.push_back("model");
    } else if (const auto number = FirstNumber(parts)) {
      keys.push_back(Prefix(parts, *number + 1));
    } else {
      const size_t depth = SharedDepth(lists, parts) + 1;
      keys.push_back(Prefix(parts, std::min(depth, parts.size() - 1)));
    }
  }
  return ByKey(tensors, keys);
}

std::vector<NamedGroup> ByModule(const std::vector<std::string>& tensors) {
  std::vector<std::string> keys;
  for (const std::string& tensor : tensors) {
    const size_t dot = tensor.rfind('.');
    keys.push_back(dot == std::string::npos ? "model" : tensor.substr(0, dot));
  }
  return ByKey(tensors, keys);
}

absl::Status CheckExplicit(const std::vector<NamedGroup>& groups,
                           const std::vector<std::string>& tensors) {
  absl::flat_hash_map<absl::string_view, bool> used;
  for (const std::string& tensor : tensors) used[tensor] = false;
  absl::flat_hash_set<absl::string_view> names;
  for (const NamedGroup& group : groups) {
    if (group.name.empty() || group.tensors.empty()) {
      return absl::InvalidArgumentError(
          absl::StrCat("group ", Quoted(group.name),
                       ": a group needs a name and at least one tensor"));
    }
    if (!names.insert(group.name).second) {
      return absl::InvalidArgumentError(
          absl::StrCat("group ", Quoted(group.name), " is there twice"));
    }
    for (const std::string& tensor : group.tensors) {
      const auto found = used.find(tensor);
      if (found == used.end()) {
        return absl::InvalidArgumentError(
            absl::StrCat("group ", Quoted(group.name), " names tensor ",
                         Quoted(tensor), ", which the files do not have"));
      }
      if (std::exchange(found->second, true)) {
        return absl::InvalidArgumentError(
            absl::StrCat("tensor ", Quoted(tensor), " is in two groups"));
      }
    }
  }
  for (const std::string& tensor : tensors) {
    if (!used[tensor]) {
      return absl::InvalidArgumentError(absl::StrCat(
          "tensor ", Quoted(tensor), " is in no group; name every tensor"));
    }
  }
  return absl::OkStatus();
}

}  // namespace

absl::StatusOr<std::vector<NamedGroup>> GroupTensors(
    const GroupingSpec& spec, const std::vector<std::string>& tensors) {
  switch (spec.rule) {
    case GroupingRule::kBlock:
      return ByBlock(tensors);
    case GroupingRule::kModule:
      return ByModule(tensors);
    case GroupingRule::kWhole:
      if (tensors.empty()) return std::vector<NamedGroup>();
      return std::vector<NamedGroup>{{"model", tensors}};
    case GroupingRule::kExplicit:
      HOIST_RETURN_IF_ERROR(CheckExplicit(spec.groups, tensors));
      return spec.groups;
  }
  return absl::InvalidArgumentError("unknown grouping rule");
}

}  // namespace hoistd
