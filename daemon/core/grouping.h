// Which tensors are staged together.
#ifndef HOIST_DAEMON_CORE_GROUPING_H_
#define HOIST_DAEMON_CORE_GROUPING_H_

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

}  // namespace hoistd

#endif  // HOIST_DAEMON_CORE_GROUPING_H_
