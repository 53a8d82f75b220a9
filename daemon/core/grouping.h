// Which tensors are staged together.
#ifndef HOIST_DAEMON_CORE_GROUPING_H_
#define HOIST_DAEMON_CORE_GROUPING_H_

#include <span>
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

// The groups of the tensors `names`, in the order in which a model runs as far
// as names tell: embeddings, numbered blocks (by number, encoders before
// decoders), the rest. Within a group tensors keep the order of `names`.
//
// kBlock: a name's prefix up to its first number. Names without a number go by
// the one component behind the path they share with a numbered list, so that
// "model.norm.weight" beside "model.layers.0.x" is "model.norm". A name without
// a dot is in "model".
//
// kExplicit: as given, order and all. InvalidArgument names the tensor that is
// unknown, left out or there twice, or the group that is.
absl::StatusOr<std::vector<NamedGroup>> GroupTensors(
    const GroupingSpec& spec, std::span<const std::string> names);

// Puts `tensors` (names, each once, in file order) into groups, in the order in
// which models run as far as names tell: what embeds first, then the numbered
// blocks in numeric order, then the rest (norms, heads, poolers). A path
// component is a number as a whole or not at all: "a.1" is not "a.10".
//
// kBlock: a tensor belongs to the block that its first numbered component
// names; those without one are grouped by their first component, or by the
// prefix that they share with the numbered blocks plus one component more. A
// name without a dot belongs to the group "model".
//
// InvalidArgument: kExplicit names an unknown tensor, one twice, or leaves one
// out; a group is unnamed, empty or there twice.
absl::StatusOr<std::vector<NamedGroup>> GroupTensors(
    const GroupingSpec& spec, const std::vector<std::string>& tensors);

}  // namespace hoistd

#endif  // HOIST_DAEMON_CORE_GROUPING_H_
