#include "tests/bench/gemm.h"

#include <dlfcn.h>

#include <algorithm>

#include "tests/bench/basics.h"

namespace hoist::bench {
namespace {

// Of cublas_api.h and library_types.h.
constexpr int kNotTransposed = 0;
constexpr int kBf16 = 14;
constexpr int kComputeF32 = 68;
constexpr int kDefaultAlgorithm = -1;

void* OpenCublas(const std::string& path) {
  if (!path.empty()) {
    void* library = dlopen(path.c_str(), RTLD_NOW | RTLD_GLOBAL);
    if (library == nullptr) Fail(dlerror());
    return library;
  }
  for (const char* name : {"libcublas.so.13", "libcublas.so.12"}) {
    if (void* library = dlopen(name, RTLD_NOW | RTLD_GLOBAL)) return library;
  }
  Fail("no libcublas.so.13 or .12 is to be found; give --cublas");
}

}  // namespace

Gemm::Gemm(Gpu& gpu, const std::string& path) : gpu_(gpu) {
  void* cublas = OpenCublas(path);
  const auto create =
      reinterpret_cast<int (*)(Handle*)>(dlsym(cublas, "cublasCreate_v2"));
  set_stream_ = reinterpret_cast<int (*)(Handle, cuda::Stream)>(
      dlsym(cublas, "cublasSetStream_v2"));
  gemm_ = reinterpret_cast<GemmEx>(dlsym(cublas, "cublasGemmEx"));
  if (!create || !set_stream_ || !gemm_) Fail("cuBLAS lacks a function");
  if (int error = create(&handle_); error != 0) {
    Fail("cublasCreate: error " + std::to_string(error));
  }
  input_ = gpu_.Alloc(uint64_t{2} * kDepth * kMostTokens);
  output_ = gpu_.Alloc(uint64_t{2} * kMostColumns * kMostTokens);
}

Gemm::~Gemm() {
  gpu_.Free(input_);
  gpu_.Free(output_);
}

void Gemm::Enqueue(cuda::Stream stream, cuda::Address weights, uint64_t bytes,
                   int tokens) {
  if (stream != stream_) {
    if (set_stream_(handle_, stream) != 0) Fail("cublasSetStream");
    stream_ = stream;
  }
  const float one = 1, zero = 0;
  uint64_t columns = bytes / 2 / kDepth;
  if (columns == 0) Fail("a group for GEMMs has 8 KiB at the least");
  for (uint64_t at = 0; columns > 0;) {
    const int n = static_cast<int>(
        std::min(columns, static_cast<uint64_t>(kMostColumns)));
    const int error =
        gemm_(handle_, kNotTransposed, kNotTransposed, n, tokens, kDepth, &one,
              reinterpret_cast<const void*>(weights + at), kBf16, n,
              reinterpret_cast<const void*>(input_), kBf16, kDepth, &zero,
              reinterpret_cast<void*>(output_), kBf16, n, kComputeF32,
              kDefaultAlgorithm);
    if (error != 0) Fail("cublasGemmEx: error " + std::to_string(error));
    columns -= static_cast<uint64_t>(n);
    at += uint64_t{2} * kDepth * static_cast<uint64_t>(n);
  }
}

}  // namespace hoist::bench
