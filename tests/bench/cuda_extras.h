// CUDA driver functions that only the benches need, loaded like those of
// hoist/shared/cuda_driver.h.
#ifndef HOIST_TESTS_BENCH_CUDA_EXTRAS_H_
#define HOIST_TESTS_BENCH_CUDA_EXTRAS_H_

#include <cstddef>
#include <cstdint>

#include "hoist/shared/cuda_driver.h"

namespace hoist::bench {

using Module = struct ModuleTag*;
using Function = struct FunctionTag*;
using Graph = struct GraphTag*;
using GraphExec = struct GraphExecTag*;

inline constexpr int kCaptureThreadLocal = 1;  // CUstreamCaptureMode.
inline constexpr int kMultiprocessors = 16;    // CUdevice_attribute.

struct CudaExtras {
  cuda::Error (*set_context)(cuda::Context);
  cuda::Error (*host_alloc)(void**, size_t, unsigned flags);
  cuda::Error (*host_free)(void*);
  cuda::Error (*event_query)(cuda::Event);
  cuda::Error (*event_elapsed)(float* ms, cuda::Event, cuda::Event);
  cuda::Error (*module_load)(Module*, const void* image);
  cuda::Error (*module_function)(Function*, Module, const char* name);
  cuda::Error (*launch)(Function, unsigned grid_x, unsigned grid_y,
                        unsigned grid_z, unsigned block_x, unsigned block_y,
                        unsigned block_z, unsigned shared, cuda::Stream,
                        void** parameters, void** extra);
  cuda::Error (*begin_capture)(cuda::Stream, int mode);
  cuda::Error (*end_capture)(cuda::Stream, Graph*);
  cuda::Error (*graph_instantiate)(GraphExec*, Graph, unsigned long long flags);
  cuda::Error (*graph_launch)(GraphExec, cuda::Stream);
  cuda::Error (*graph_exec_destroy)(GraphExec);
  cuda::Error (*graph_destroy)(Graph);
  cuda::Error (*wait_value)(cuda::Stream, cuda::Address, uint32_t,
                            unsigned flags);
  cuda::Error (*write_value)(cuda::Stream, cuda::Address, uint32_t,
                             unsigned flags);

  // Ends the bench if the driver lacks a function.
  static CudaExtras Load();
};

}  // namespace hoist::bench

#endif  // HOIST_TESTS_BENCH_CUDA_EXTRAS_H_
