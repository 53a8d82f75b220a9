// Synthetic routing of a mixture's tokens to its experts.
#ifndef HOIST_TESTS_BENCH_ROUTING_H_
#define HOIST_TESTS_BENCH_ROUTING_H_

#include <cstddef>
#include <cstdint>
#include <string>
#include <vector>

namespace hoist::bench {

// What ranks a sequence's experts. A token chooses distinct experts of each
// layer, the one of rank r (from 0) with odds (r + offset)^-power.
enum class Ranks {
  kStatic,   // One random ranking for all: a static skew, Zipf's law.
  kRecency,  // Last chosen first, a stack for each sequence: locality in time.
  kPrompt,   // A random ranking for each prompt of a sequence: drift.
};

struct RoutingSpec {
  std::string name;
  Ranks ranks = Ranks::kStatic;
  double power = 1;
  double offset = 1;
};

struct RoutingOptions {
  uint32_t layers = 2;
  uint32_t experts = 512;  // Of a layer.
  uint32_t chosen = 10;    // By a token, of a layer.
  uint32_t prompt = 256;   // Tokens of a prompt.
  uint32_t sequences = 1;  // Each has a token in every step.
  uint32_t steps = 1024;
  uint64_t seed = 1;
};

// One pass. Both vectors have an element for each expert of all layers.
struct RoutingStep {
  std::vector<double> touches;  // Tokens that chose it.
  std::vector<double> odds;     // Expected touches in the next step.
};

// The three traces. Recency's odds give the hit rates that llama.cpp's pull
// request 27861 reports of 512 experts, 10 of them chosen: LRU lists of 64 and
// of 128 have 67 % and 81 % of a layer's touches, a static list of 32 has 10 %.
// Here they have 68 %, 79 % and 6 %.
std::vector<RoutingSpec> RoutingSpecs();

// Deterministic for the options.
std::vector<RoutingStep> Route(const RoutingSpec& spec,
                               const RoutingOptions& options);

}  // namespace hoist::bench

#endif  // HOIST_TESTS_BENCH_ROUTING_H_
