// Measurements behind the choice of the memory for a lane's words.
#ifndef HOIST_TESTS_BENCH_HOTPATH_WORDS_H_
#define HOIST_TESTS_BENCH_HOTPATH_WORDS_H_

#include "tests/bench/gpu.h"
#include "tests/bench/report.h"

namespace hoist::bench {

// Waits and writes of words in registered host memory and in device memory, one
// by one and batched. Measures host time per call, and GPU time per group in a
// graph of spin kernels.
void MeasureWords(Gpu& gpu, Report& report);

}  // namespace hoist::bench

#endif  // HOIST_TESTS_BENCH_HOTPATH_WORDS_H_
