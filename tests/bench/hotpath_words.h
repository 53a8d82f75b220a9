// The table behind the choice of where a lane's words lie.
#ifndef HOIST_TESTS_BENCH_HOTPATH_WORDS_H_
#define HOIST_TESTS_BENCH_HOTPATH_WORDS_H_

#include "tests/bench/gpu.h"
#include "tests/bench/report.h"

namespace hoist::bench {

// Waits and writes of words in registered host memory and in device memory,
// one by one and batched: host time of a call, and GPU time a group in a graph
// whose groups are spin kernels.
void MeasureWords(Gpu& gpu, Report& report);

}  // namespace hoist::bench

#endif  // HOIST_TESTS_BENCH_HOTPATH_WORDS_H_
