// Decides which groups of a plan stay on the device, and where others take
// turns.
//
// Streamed groups share one ring: a contiguous range of device memory in which
// each has a slot at a fixed address. Slots of different groups may overlap;
// such groups take turns. So sizes may differ widely, and a slot is no larger
// than its group needs.
//
// While one group computes, the next one arrives: the ring must hold the two
// largest streamed groups at once. With small groups, several must be in
// flight, or the link idles between them. So the ring holds `slack_bytes`
// beside the largest group if the next largest is smaller than that. The rest
// of the budget keeps as many bytes resident as fit, since a resident byte
// costs no copies.
//
// Groups of one block are staged together. The ring then holds what two blocks
// in a row stream, and each block keeps a part on the device.
#ifndef HOIST_DAEMON_PLAN_PLANNER_H_
#define HOIST_DAEMON_PLAN_PLANNER_H_

#include <cstdint>
#include <optional>
#include <vector>

#include "absl/status/statusor.h"

namespace hoistd {

struct PlanProblem {
  std::vector<uint64_t> bytes;  // Of each group on the device; not 0.
  // One pass: indices into `bytes`. Each occurs at least once.
  std::vector<uint32_t> order;
  uint64_t budget_bytes = 0;
  // Less with a small budget, at most half of what the two largest groups leave
  // of it; and if little is beyond the budget, since a pass copies slack too.
  uint64_t slack_bytes = uint64_t{32} << 20;
  // Of each group; empty: each group is a block.
  std::vector<uint32_t> blocks;
};

// A group's place in the ring, fixed for the plan's life.
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
  // Copied per pass, if the order is kept.
  uint64_t streamed_bytes = 0;
  // The fewest steps of the order from a slot's release to the group's next
  // use; 1: nothing hides the copy. 0: nothing is streamed.
  uint32_t lead = 0;
};

// Pure. Maximizes resident bytes, given a ring as said above; a larger budget
// never lowers them. Exact if the budget is at most 2^17 times the greatest
// common divisor of all sizes; else sizes are rounded up to units of at most
// 2^-17 of it. Among equal groups those visited most often per pass stay, and
// among these every n-th of the order, since copies then overlap more compute.
// The rest goes to the ring only if that hides a copy. Below the two largest
// nothing is resident and the ring is the whole budget. Not exact for blocks of
// several groups: see block_residents.h.
// ResourceExhausted: the budget is below the minimum, the largest block; the
// message names both.
// InvalidArgument: an empty or inconsistent problem.
absl::StatusOr<Plan> MakePlan(const PlanProblem& problem);

}  // namespace hoistd

#endif  // HOIST_DAEMON_PLAN_PLANNER_H_
