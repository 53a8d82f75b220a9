// Which of a plan's groups stay on the device, and where the others take turns.
//
// The streamed groups share one ring: a contiguous range of device memory in
// which each has a slot of its own, at an address that never changes. Slots of
// different groups may overlap; what overlaps takes turns. So sizes may differ
// wildly, and no slot is as large as the largest group unless it must be.
//
// While one group computes the next one arrives, so the ring must hold the two
// largest streamed groups at once. Small groups need more on their way than one
// at a time, lest the link idles between them: beside the largest group the
// ring holds `slack_bytes` if the next one is smaller than that. The rest of
// the budget keeps groups resident, as many bytes as fit, since a resident byte
// costs nothing in any pass.
#ifndef HOIST_DAEMON_PLAN_PLANNER_H_
#define HOIST_DAEMON_PLAN_PLANNER_H_

#include <cstdint>
#include <optional>
#include <vector>

#include "absl/status/statusor.h"

namespace hoistd {

struct PlanProblem {
  std::vector<uint64_t> bytes;  // Of each group on the device; none is 0.
  // One pass: indices into `bytes`. Each occurs, perhaps several times.
  std::vector<uint32_t> order;
  uint64_t budget_bytes = 0;
  // Less is taken where the budget is small: at most half of what the two
  // largest groups leave of it.
  uint64_t slack_bytes = uint64_t{32} << 20;
};

// A group's place in the ring, for as long as the plan stands.
struct Slot {
  uint64_t offset = 0;  // From the ring's start.
  uint64_t bytes = 0;

  bool Overlaps(const Slot& other) const {
    return offset < other.offset + other.bytes && other.offset < offset + bytes;
  }
};

struct Plan {
  std::vector<std::optional<Slot>> slots;  // By group; nullopt: resident.
  uint64_t ring_bytes = 0;                 // 0: every group is resident.
  uint64_t resident_bytes = 0;
  // Of the groups that are copied in each pass, if their order is kept.
  uint64_t streamed_bytes = 0;
  // Steps of the order between the moment a group's slot comes free and its
  // next use, at the least: 1 is a copy that nothing hides. 0: none streamed.
  uint32_t lead = 0;
};

// What MakePlan needs at least: the largest group. Below the two largest, some
// copies are not hidden behind compute.
uint64_t MinimumBudget(const PlanProblem& problem);

// Pure. The resident bytes are the most that any choice allows whose ring is as
// said above, and never fewer with a larger budget: exactly so where the budget
// is at most 2^17 times the largest common divisor of all sizes; else sizes are
// counted in units of at most a 2^17th of it, rounded up. Of equal groups those
// stay that a pass visits most often, and of these every so many-th of the
// order, since copies then overlap more compute. What is left over goes to the
// ring only if that hides a copy. Below the two largest nothing is resident and
// the ring is the whole budget.
// ResourceExhausted: the budget is below the minimum; the message names both.
// InvalidArgument: an empty or inconsistent problem.
absl::StatusOr<Plan> MakePlan(const PlanProblem& problem);

}  // namespace hoistd

#endif  // HOIST_DAEMON_PLAN_PLANNER_H_
