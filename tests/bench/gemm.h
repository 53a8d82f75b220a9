// Matrix products over a group's bytes as bf16 weights, by cuBLAS.
#ifndef HOIST_TESTS_BENCH_GEMM_H_
#define HOIST_TESTS_BENCH_GEMM_H_

#include <cstdint>
#include <string>

#include "tests/bench/gpu.h"

namespace hoist::bench {

// cuBLAS is loaded at run time, like the driver: from `path`, else the loader's
// libcublas.so.13 or .12. A group is split into matrices of kDepth rows and at
// most kMostColumns columns. Each is multiplied with the same activations of
// `tokens` rows.
class Gemm {
 public:
  static constexpr int kDepth = 4096;
  static constexpr int kMostColumns = 8192;
  static constexpr int kMostTokens = 32768;

  Gemm(Gpu& gpu, const std::string& path);
  ~Gemm();
  Gemm(const Gemm&) = delete;
  Gemm& operator=(const Gemm&) = delete;

  void Enqueue(cuda::Stream stream, cuda::Address weights, uint64_t bytes,
               int tokens);

 private:
  using Handle = void*;
  using GemmEx = int (*)(Handle, int, int, int, int, int, const void*,
                         const void*, int, int, const void*, int, int,
                         const void*, void*, int, int, int, int);

  Gpu& gpu_;
  Handle handle_ = nullptr;
  int (*set_stream_)(Handle, cuda::Stream) = nullptr;
  GemmEx gemm_ = nullptr;
  cuda::Stream stream_ = nullptr;
  cuda::Address input_ = 0;
  cuda::Address output_ = 0;
};

}  // namespace hoist::bench

#endif  // HOIST_TESTS_BENCH_GEMM_H_
