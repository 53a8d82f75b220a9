// Where in a plan's ring each streamed group has its slot.
//
// A group can be copied once the last group that lies in its place is done, so
// a good layout keeps consecutive groups side by side, and as many of them as
// the ring has room for.
#ifndef HOIST_DAEMON_PLAN_RING_LAYOUT_H_
#define HOIST_DAEMON_PLAN_RING_LAYOUT_H_

#include <cstdint>
#include <vector>

#include "daemon/plan/planner.h"

namespace hoistd {

// What a layout costs in each pass, once passes follow one another in order.
struct RingTraffic {
  uint64_t copied_bytes = 0;
  // Of copies into the place of the step just before: compute hides nothing.
  uint64_t exposed_bytes = 0;
  // Steps between the moment a copy can start and its use: the fewest, and in
  // sum over all copies. 0: nothing is copied.
  uint32_t lead = 0;
  uint64_t total_lead = 0;
};

struct RingProblem {
  std::vector<uint64_t> bytes;  // Of the streamed groups by their first use.
  std::vector<uint32_t> steps;  // One pass: indices into `bytes`, each used.
  uint64_t ring_bytes = 0;      // At least the largest group.
  uint64_t unit = 1;            // Offsets are its multiples, as all sizes are.
};

struct RingLayout {
  std::vector<Slot> slots;
  RingTraffic traffic;
};

// Costs as much as sorting the steps.
RingTraffic MeasureRing(const std::vector<Slot>& slots,
                        const std::vector<uint32_t>& steps);

// Pure. The best of a few ways by exposed bytes, then lead, then total lead.
// Nothing is exposed if any two groups fit in the ring, each occurs once, and
// their number is even or some three in a row fit.
RingLayout LayOutRing(const RingProblem& problem);

}  // namespace hoistd

#endif  // HOIST_DAEMON_PLAN_RING_LAYOUT_H_
