#include "client/src/plan/plan_layout.h"

#include <limits>
#include <string>

#include "hoist/shared/lane_layout.h"

namespace hoist {
namespace {

constexpr uint32_t kNone = std::numeric_limits<uint32_t>::max();

Status MalformedPlan(const std::string& what) {
  return Status(Code::kInternal, "hoistd sent a malformed plan: " + what);
}

}  // namespace

Result<std::vector<uint32_t>> PlannableOrder(const ModelTable& model,
                                             std::vector<uint32_t> order) {
  const std::vector<GroupEntry>& groups = model.groups();
  for (const uint32_t group : order) {
    if (Status s = model.CheckGroup(group); !s.ok()) return s;
  }
  if (order.empty()) {
    for (uint32_t g = 0; g < groups.size(); ++g) order.push_back(g);
  }
  std::erase_if(order, [&](uint32_t g) { return groups[g].image_bytes == 0; });
  if (order.empty()) {
    return Status(Code::kInvalidArgument,
                  "no group of the order has any bytes; nothing to plan");
  }
  return order;
}

Result<PlanLayout> CheckPlan(const PlanGrant& grant, const ModelTable& model,
                             const std::vector<uint32_t>& order) {
  PlanLayout layout;
  std::vector<uint32_t> lane_of(model.groups().size(), kNone);
  std::vector<bool> seen(model.groups().size());
  size_t next = 0;
  for (const uint32_t group : order) {
    if (!seen[group]) {
      seen[group] = true;
      if (next == grant.groups.size() || grant.groups[next].group != group) {
        return MalformedPlan("its groups are not those of the order");
      }
      const PlannedGroup& planned = grant.groups[next++];
      const GroupEntry& entry = model.groups()[group];
      if (planned.resident) {
        layout.residents.push_back(group);
        layout.all_bytes += entry.image_bytes;
      } else {
        if (planned.slot_bytes < entry.image_bytes) {
          return MalformedPlan("the slot of group \"" + entry.name +
                               "\" is smaller than its image");
        }
        lane_of[group] = static_cast<uint32_t>(layout.streamed.size());
        layout.streamed.push_back(planned);
        layout.all_bytes += planned.slot_bytes;
      }
    }
    if (lane_of[group] != kNone) layout.order.push_back(lane_of[group]);
  }
  if (next != grant.groups.size())
    return MalformedPlan("it has too many groups");
  if (layout.streamed.size() > lane::kMaxGroups) {
    return MalformedPlan("it streams more groups than a lane has");
  }
  return layout;
}

}  // namespace hoist
