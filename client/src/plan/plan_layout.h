// hoistd's answer to a plan, checked against the request.
#ifndef HOIST_CLIENT_SRC_PLAN_PLAN_LAYOUT_H_
#define HOIST_CLIENT_SRC_PLAN_PLAN_LAYOUT_H_

#include <cstdint>
#include <vector>

#include "client/src/messages/messages.h"
#include "client/src/messages/model_table.h"
#include "hoist/shared/status.h"

namespace hoist {

// Plain data.
struct PlanLayout {
  std::vector<uint32_t> residents;     // In order of first use.
  std::vector<PlannedGroup> streamed;  // In order of the lane's numbers.
  std::vector<uint32_t> order;         // Of one pass, in the lane's numbers.
  uint64_t all_bytes = 0;              // The budget to keep all resident.
};

// The order without empty groups, which need no staging; by default all of the
// model's. InvalidArgument: nothing is left. OutOfRange: no such group.
Result<std::vector<uint32_t>> PlannableOrder(const ModelTable& model,
                                             std::vector<uint32_t> order);

// `order`: as sent, without empty groups. Internal: the answer does not match
// the request, or a slot is smaller than its image.
Result<PlanLayout> CheckPlan(const PlanGrant& grant, const ModelTable& model,
                             const std::vector<uint32_t>& order);

}  // namespace hoist

#endif  // HOIST_CLIENT_SRC_PLAN_PLAN_LAYOUT_H_
