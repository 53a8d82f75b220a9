// The slots of streamed groups in a plan's ring.
//
// A group's copy can start when the last group in its place is done. So a good
// layout puts as many consecutive groups side by side as the ring can hold.
#ifndef HOIST_DAEMON_PLAN_RING_LAYOUT_H_
#define HOIST_DAEMON_PLAN_RING_LAYOUT_H_

#include <cstdint>
#include <vector>

#include "daemon/plan/planner.h"

namespace hoistd {

// The cost of a layout per pass, in steady state.
struct RingTraffic {
  uint64_t copied_bytes = 0;
  // Copies into the place of the step before: no compute hides them.
  uint64_t exposed_bytes = 0;
  // Steps from a copy's earliest start to its use: the minimum, and the sum
  // over all copies. 0: nothing is copied.
  uint32_t lead = 0;
  uint64_t total_lead = 0;
};

struct RingProblem {
  std::vector<uint64_t> bytes;  // Of streamed groups by first use.
  std::vector<uint32_t> steps;  // One pass: indices into `bytes`; all occur.
  uint64_t ring_bytes = 0;      // At least the largest group.
  uint64_t unit = 1;            // Divides all offsets and sizes.
};

struct RingLayout {
  std::vector<Slot> slots;
  RingTraffic traffic;
};

// Costs as much as sorting the steps.
RingTraffic MeasureRing(const std::vector<Slot>& slots,
                        const std::vector<uint32_t>& steps);

// Pure. The best of several layouts by exposed bytes, then lead, then total
// lead. Nothing is exposed if any two groups fit in the ring, each occurs once,
// and their number is even or some three in a row fit.
RingLayout LayOutRing(const RingProblem& problem);

}  // namespace hoistd

#endif  // HOIST_DAEMON_PLAN_RING_LAYOUT_H_
