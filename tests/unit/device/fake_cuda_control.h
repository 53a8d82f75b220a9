// The controls of tests/conformance/device/fake_cuda.cc.
#ifndef HOIST_TESTS_UNIT_DEVICE_FAKE_CUDA_CONTROL_H_
#define HOIST_TESTS_UNIT_DEVICE_FAKE_CUDA_CONTROL_H_

#include <optional>

namespace hoistd::testing {

struct FakeCuda {
  void (*fail_at)(int n);  // The n-th call from now on fails; 0: none.
  int (*calls)();          // Since then.
  const char* (*held)();   // Empty if the fake holds nothing.
  void (*set_stream_mem_ops)(bool can);  // Whether streams write words.
  void (*set_host_memory)(bool can);     // Whether it can be shared.
};

// nullopt: the libcuda.so.1 found is a real one.
std::optional<FakeCuda> FindFakeCuda();

}  // namespace hoistd::testing

#endif  // HOIST_TESTS_UNIT_DEVICE_FAKE_CUDA_CONTROL_H_
