// Orders of groups with sizes, as models and schedulers make them.
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

// The same for the same seed.
std::vector<Trace> Traces(uint64_t seed);

}  // namespace hoist::bench

#endif  // HOIST_TESTS_BENCH_TRACES_H_
