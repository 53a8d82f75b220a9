#include "tests/bench/cuda_extras.h"

#include <dlfcn.h>

#include <string>

#include "tests/bench/basics.h"

namespace hoist::bench {
namespace {

template <typename F>
void Find(void* library, const char* name, F& function) {
  function = reinterpret_cast<F>(dlsym(library, name));
  if (function == nullptr) Fail(std::string("libcuda has no ") + name);
}

}  // namespace

CudaExtras CudaExtras::Load() {
  void* cuda = dlopen("libcuda.so.1", RTLD_NOW);
  if (cuda == nullptr) Fail("there is no libcuda.so.1");
  CudaExtras found = {};
  Find(cuda, "cuCtxSetCurrent", found.set_context);
  Find(cuda, "cuMemHostAlloc", found.host_alloc);
  Find(cuda, "cuMemFreeHost", found.host_free);
  Find(cuda, "cuEventQuery", found.event_query);
  Find(cuda, "cuEventElapsedTime", found.event_elapsed);
  Find(cuda, "cuModuleLoadData", found.module_load);
  Find(cuda, "cuModuleGetFunction", found.module_function);
  Find(cuda, "cuLaunchKernel", found.launch);
  Find(cuda, "cuStreamBeginCapture_v2", found.begin_capture);
  Find(cuda, "cuStreamEndCapture", found.end_capture);
  Find(cuda, "cuGraphInstantiateWithFlags", found.graph_instantiate);
  Find(cuda, "cuGraphLaunch", found.graph_launch);
  Find(cuda, "cuGraphExecDestroy", found.graph_exec_destroy);
  Find(cuda, "cuGraphDestroy", found.graph_destroy);
  Find(cuda, "cuStreamWaitValue32_v2", found.wait_value);
  Find(cuda, "cuStreamWriteValue32_v2", found.write_value);
  return found;
}

}  // namespace hoist::bench
