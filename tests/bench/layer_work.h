// The computation of a pass on each group, on a GPU or an emulated device.
#ifndef HOIST_TESTS_BENCH_LAYER_WORK_H_
#define HOIST_TESTS_BENCH_LAYER_WORK_H_

#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include "tests/bench/gemm.h"
#include "tests/bench/gpu.h"
#include "tests/bench/run_options.h"

namespace hoist::bench {

enum class Compute {
  kNone,
  kGemm,  // Bound by arithmetic; CUDA only.
  kRead,  // Bound by HBM: the checksum of every byte, kept.
};
Compute ParseCompute(const std::string& text);

// Threads: one.
class LayerWork {
 public:
  // `gpu`: nullptr on an emulated device. Keeps `sums` checksums.
  LayerWork(Gpu* gpu, Compute compute, const std::string& cublas, size_t sums);
  ~LayerWork();

  // Finds the number of tokens with which a group's GEMMs take `seconds`, by
  // trials on plain device memory.
  void FitTokens(uint64_t group_bytes, double seconds);
  int tokens() const { return tokens_; }

  // `sum`: the index of the checksum to add to.
  void Run(cuda::Stream stream, const void* data, uint64_t bytes, size_t sum);
  // Seconds of a pass of `groups` on weights in plain device memory, without
  // hoist: the median of five, after two for warm-up.
  double ResidentPassSeconds(uint32_t groups, uint64_t group_bytes);
  // Valid once all work is complete.
  std::vector<uint64_t> Sums() const;

 private:
  Gpu* const gpu_;
  const Compute compute_;
  std::unique_ptr<Gemm> gemm_;
  int tokens_ = 1024;
  cuda::Address sums_ = 0;
  std::vector<uint64_t> host_sums_;
};

// The rate of the link for groups, measured in this process: pinned copies on a
// GPU; memcpy, or the configured rate, on an emulated device.
double MeasuredLink(Gpu* gpu, const RunOptions& options, uint64_t piece_bytes);

}  // namespace hoist::bench

#endif  // HOIST_TESTS_BENCH_LAYER_WORK_H_
