// Policies that choose which experts are hot, on a trace of routing.
#ifndef HOIST_TESTS_BENCH_HOT_POLICIES_H_
#define HOIST_TESTS_BENCH_HOT_POLICIES_H_

#include <cstddef>
#include <functional>
#include <span>
#include <string>
#include <vector>

#include "tests/bench/routing.h"

namespace hoist::bench {

// Chooses the experts that are hot in the next step, after a step.
using HotPolicy = std::function<std::vector<bool>(
    const RoutingStep& step, const std::vector<bool>& hot)>;

struct NamedPolicy {
  std::string name;
  HotPolicy choose;
};

// Policies for `room` hot experts of `experts`, all new.
std::vector<NamedPolicy> HotPolicies(size_t experts, size_t room);

// In units of an expert's bytes, of the trace's second half; the first warms
// up. A step reads an expert once, however many of its tokens chose it. To make
// a cold expert hot is a copy of the same bytes.
struct HotTraffic {
  double reads = 0;
  double missed = 0;  // Of them in place, from the host.
  double moved = 0;   // Copies to the device.
};

// Begins with evenly spread experts.
HotTraffic Replay(std::span<const RoutingStep> steps, size_t room,
                  const HotPolicy& policy);

// The least missed + moved of any choice with foresight that copies an expert
// after a read of it: Belady's with this price of a copy. It is a bound: any
// experts may be hot at the begin, and the room is kept on average over time.
HotTraffic LeastTraffic(std::span<const RoutingStep> steps, size_t room);

}  // namespace hoist::bench

#endif  // HOIST_TESTS_BENCH_HOT_POLICIES_H_
