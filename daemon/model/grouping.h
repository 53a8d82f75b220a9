// Which tensors are staged together.
#ifndef HOIST_DAEMON_MODEL_GROUPING_H_
#define HOIST_DAEMON_MODEL_GROUPING_H_

#include <string>
#include <vector>

#include "absl/status/statusor.h"

namespace hoistd {

enum class GroupingRule {
  kBlock,     // "encoder.layer.3.x.y" -> "encoder.layer.3".
  kModule,    // "encoder.layer.3.x.y" -> "encoder.layer.3.x".
  kWhole,     // One group, "model".
  kExplicit,  // As given.
};

// A group's name and its tensors' names.
struct NamedGroup {
  std::string name;
  std::vector<std::string> tensors;
};

struct GroupingSpec {
  GroupingRule rule = GroupingRule::kBlock;
  std::vector<NamedGroup> groups;  // kExplicit: every tensor, once.
};

// Puts `tensors` (names, each once, in file order) into groups, in the order in
// which models run as far as names tell: what embeds first, then the numbered
// blocks in numeric order, then the rest (norms, heads, poolers). A path
// component is a number as a whole or not at all: "a.1" is not "a.10".
//
// kBlock: a tensor belongs to the block that its first numbered component
// names; those without one are grouped by their first component, or by the
// prefix that they share with the numbered blocks plus one component more. A
// name without a dot belongs to the group "model".
// Python groups the modules that it attaches by the same rule, so that both
// show the same names; tests/cases/block_groups.txt holds the two to it, and
// says where modules tell more than names.
//
// InvalidArgument: kExplicit names an unknown tensor, one twice, or leaves one
// out; a group is unnamed, empty or there twice.
absl::StatusOr<std::vector<NamedGroup>> GroupTensors(
    const GroupingSpec& spec, const std::vector<std::string>& tensors);

}  // namespace hoistd

#endif  // HOIST_DAEMON_MODEL_GROUPING_H_
