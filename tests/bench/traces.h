// Orders of groups with sizes, like those of models and schedulers.
#ifndef HOIST_TESTS_BENCH_TRACES_H_
#define HOIST_TESTS_BENCH_TRACES_H_

#include <cstdint>
#include <string>
#include <vector>

namespace hoist::bench {

struct Trace {
  std::string name;
  std::vector<uint64_t> bytes;  // Of each group.
  std::vector<uint32_t> order;  // One pass.
};

// Deterministic for a seed.
std::vector<Trace> Traces(uint64_t seed);

}  // namespace hoist::bench

#endif  // HOIST_TESTS_BENCH_TRACES_H_
