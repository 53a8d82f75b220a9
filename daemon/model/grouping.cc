#include "daemon/model/grouping.h"

#include <algorithm>
#include <optional>
#include <tuple>
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
#include "daemon/model/file_header.h"
#include "daemon/model/model_name.h"

namespace hoistd {
namespace {

using Parts = std::vector<absl::string_view>;

bool IsNumber(absl::string_view part) {
  return !part.empty() &&
         std::all_of(part.begin(), part.end(), absl::ascii_isdigit);
}

// The place of the first numbered component before the last one. A number at
// the very front (a wrapped model, "0.auto_model.encoder.layer.3.x") counts
// only where no other follows.
std::optional<size_t> FirstNumber(const Parts& parts) {
  for (size_t i = 1; i + 1 < parts.size(); ++i) {
    if (IsNumber(parts[i])) return i;
  }
  if (parts.size() > 1 && IsNumber(parts[0])) return 0;
  return std::nullopt;
}

std::string Prefix(const Parts& parts, size_t count) {
  return absl::StrJoin(parts.begin(), parts.begin() + count, ".");
}

// By value; "7" before "07".
bool NumberLess(absl::string_view a, absl::string_view b) {
  const auto digits = [](absl::string_view n) {
    return n.substr(std::min(n.find_first_not_of('0'), n.size()));
  };
  const absl::string_view x = digits(a), y = digits(b);
  return std::make_tuple(x.size(), x, a.size()) <
         std::make_tuple(y.size(), y, b.size());
}

// Which of two parts of a model runs first, where names tell: an encoder before
// its decoder, vision before language, single blocks after double ones (Flux).
int Turn(absl::string_view part) {
  if (absl::StrContains(part, "decoder")) return 2;
  if (absl::StartsWith(part, "single_")) return 2;
  for (const absl::string_view first : {"encoder", "vision", "visual"}) {
    if (absl::StrContains(part, first)) return 0;
  }
  return 1;
}

// Less by components; numbers by value, so that 2 comes before 10, and before
// words.
bool NaturalLess(const Parts& x, const Parts& y) {
  for (size_t i = 0; i < std::min(x.size(), y.size()); ++i) {
    if (x[i] == y[i]) continue;
    const bool number = IsNumber(x[i]);
    if (number != IsNumber(y[i])) return number;
    if (number) return NumberLess(x[i], y[i]);
    const int p = Turn(x[i]), q = Turn(y[i]);
    return p != q ? p < q : x[i] < y[i];
  }
  return x.size() < y.size();
}

// 0: embeds; 1: numbered blocks; 2: what comes after them.
int Rank(const Parts& parts) {
  // A number in front of words is a wrapper's, as for FirstNumber.
  const auto begin = parts.begin() + (parts.size() > 1 ? 1 : 0);
  if (std::any_of(begin, parts.end(), IsNumber)) return 1;
  for (const absl::string_view part : parts) {
    if (absl::StrContains(part, "embed") || absl::StrContains(part, "patch") ||
        part == "wte" || part == "wpe" || part == "shared" ||
        part == "conv_in" || part == "stem") {
      return 0;
    }
  }
  return 2;
}

// The folders that numbered lists lie in: "model" for "model.layers.3.x", and
// "bert" and "bert.encoder" for "bert.encoder.layer.3.x".
using Folders = absl::flat_hash_set<std::string>;
// Keeps a name of thousands of components from taking the time of its square.
constexpr size_t kDeepestFolder = 16;

void AddFolders(const Parts& parts, size_t number, Folders& folders) {
  for (size_t n = 1; n < std::min(number, kDeepestFolder + 1); ++n) {
    folders.insert(Prefix(parts, n));
  }
}

// How many of the first components are such a folder. Names beside a list are
// told apart by the next one.
size_t SharedDepth(const Folders& folders, const Parts& parts) {
  size_t depth = 0;
  while (depth < kDeepestFolder && depth + 1 < parts.size() &&
         folders.contains(Prefix(parts, depth + 1))) {
    ++depth;
  }
  return depth;
}

std::vector<NamedGroup> ByKey(const std::vector<std::string>& tensors,
                              const std::vector<std::string>& keys) {
  absl::flat_hash_map<std::string, size_t> index;
  std::vector<NamedGroup> groups;
  for (size_t i = 0; i < tensors.size(); ++i) {
    // ".weight" has a module without a name.
    const std::string key = keys[i].empty() ? "model" : EscapeControl(keys[i]);
    const auto [at, is_new] = index.emplace(key, groups.size());
    if (is_new) groups.push_back({key, {}});
    groups[at->second].tensors.push_back(tensors[i]);
  }
  struct Place {
    size_t group;
    Parts parts;
    int rank;
  };
  std::vector<Place> order;
  for (size_t i = 0; i < groups.size(); ++i) {
    Parts parts = absl::StrSplit(groups[i].name, '.');
    const int rank = Rank(parts);
    order.push_back({i, std::move(parts), rank});
  }
  std::sort(order.begin(), order.end(), [](const Place& a, const Place& b) {
    return a.rank != b.rank ? a.rank < b.rank : NaturalLess(a.parts, b.parts);
  });
  std::vector<NamedGroup> sorted;
  for (const Place& place : order) {
    sorted.push_back(std::move(groups[place.group]));
  }
  return sorted;
}

std::string BlockOf(const Folders& folders, const Parts& parts) {
  if (parts.size() == 1) return "model";
  const std::optional<size_t> number = FirstNumber(parts);
  const size_t shared = SharedDepth(folders, parts);
  if (number.has_value() && (*number > 0 || shared == 0)) {
    return Prefix(parts, *number + 1);
  }
  return Prefix(parts, std::min(shared + 1, parts.size() - 1));
}

std::vector<NamedGroup> ByBlock(const std::vector<std::string>& tensors) {
  Folders folders;
  for (const std::string& tensor : tensors) {
    const Parts parts = absl::StrSplit(tensor, '.');
    if (const auto number = FirstNumber(parts)) {
      AddFolders(parts, *number, folders);
    }
  }
  std::vector<std::string> keys;
  for (const std::string& tensor : tensors) {
    keys.push_back(BlockOf(folders, absl::StrSplit(tensor, '.')));
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
