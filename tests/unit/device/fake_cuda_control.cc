#include "tests/unit/device/fake_cuda_control.h"

#include <dlfcn.h>

namespace hoistd::testing {

std::optional<FakeCuda> FindFakeCuda() {
  void* library = dlopen("libcuda.so.1", RTLD_NOW | RTLD_LOCAL);
  if (library == nullptr) return std::nullopt;
  FakeCuda fake;
  fake.fail_at =
      reinterpret_cast<void (*)(int)>(dlsym(library, "fake_cuda_fail_at"));
  fake.calls = reinterpret_cast<int (*)()>(dlsym(library, "fake_cuda_calls"));
  fake.held =
      reinterpret_cast<const char* (*)()>(dlsym(library, "fake_cuda_held"));
  fake.set_stream_mem_ops = reinterpret_cast<void (*)(bool)>(
      dlsym(library, "fake_cuda_set_stream_mem_ops"));
  fake.set_host_memory = reinterpret_cast<void (*)(bool)>(
      dlsym(library, "fake_cuda_set_host_memory"));
  if (fake.fail_at == nullptr || fake.calls == nullptr ||
      fake.held == nullptr || fake.set_stream_mem_ops == nullptr ||
      fake.set_host_memory == nullptr) {
    return std::nullopt;
  }
  return fake;
}

}  // namespace hoistd::testing
