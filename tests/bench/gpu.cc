#include "tests/bench/gpu.h"

#include <algorithm>
#include <cstring>

#include "tests/bench/basics.h"
#include "tests/bench/kernels_ptx.h"

namespace hoist::bench {
namespace {

cuda::Driver LoadDriver() {
  Result<cuda::Driver> driver = cuda::Driver::Load();
  bench::Require(driver.status(), "CUDA");
  return *driver;
}

}  // namespace

Gpu::Gpu() : driver_(LoadDriver()), extras_(CudaExtras::Load()) {
  cuda::DeviceId device = 0;
  Require(driver_.device_get(&device, 0), "cuDeviceGet");
  Open(device);
}

Gpu::Gpu(const uint8_t uuid[16])
    : driver_(LoadDriver()), extras_(CudaExtras::Load()) {
  int count = 0;
  Require(driver_.device_count(&count), "cuDeviceGetCount");
  for (int i = 0; i < count; ++i) {
    cuda::DeviceId device = 0;
    cuda::Uuid found = {};
    Require(driver_.device_get(&device, i), "cuDeviceGet");
    Require(driver_.device_uuid(&found, device), "cuDeviceGetUuid");
    if (std::memcmp(found.bytes.data(), uuid, 16) == 0) {
      Open(device);
      return;
    }
  }
  Fail("hoistd's GPU is not visible to this process");
}

void Gpu::Open(cuda::DeviceId device) {
  device_ = device;
  cuda::Context context = nullptr;
  Require(driver_.primary_retain(&context, device), "cuDevicePrimaryCtxRetain");
  Require(extras_.set_context(context), "cuCtxSetCurrent");
  Require(driver_.device_attribute(&multiprocessors_, kMultiprocessors, device),
          "cuDeviceGetAttribute");
  Module module = nullptr;
  Require(extras_.module_load(&module, kKernelsPtx), "cuModuleLoadData");
  Require(extras_.module_function(&checksum_, module, "checksum"), "checksum");
  Require(extras_.module_function(&spin_, module, "spin"), "spin");
}

std::string Gpu::name() const {
  char name[128] = {};
  Require(driver_.device_name(name, sizeof(name) - 1, device_), "name");
  return name;
}

void Gpu::Require(cuda::Error error, const char* what) const {
  if (error != cuda::kSuccess) {
    bench::Require(driver_.Check(error, what), "CUDA");
  }
}

cuda::Stream Gpu::NewStream() {
  cuda::Stream stream = nullptr;
  Require(driver_.stream_create(&stream, cuda::kStreamNonBlocking),
          "cuStreamCreate");
  return stream;
}

cuda::Event Gpu::NewEvent() {
  cuda::Event event = nullptr;
  Require(driver_.event_create(&event, 0), "cuEventCreate");
  return event;
}

void Gpu::Record(cuda::Event event, cuda::Stream stream) {
  Require(driver_.event_record(event, stream), "cuEventRecord");
}

double Gpu::SecondsBetween(cuda::Event begin, cuda::Event end) {
  Require(driver_.event_sync(end), "cuEventSynchronize");
  float ms = 0;
  Require(extras_.event_elapsed(&ms, begin, end), "cuEventElapsedTime");
  return static_cast<double>(ms) / 1e3;
}

void Gpu::Sync(cuda::Stream stream) {
  Require(driver_.stream_sync(stream), "cuStreamSynchronize");
}

cuda::Address Gpu::Alloc(uint64_t bytes) {
  cuda::Address address = 0;
  Require(driver_.alloc(&address, bytes), "cuMemAlloc");
  Require(driver_.set_bytes(address, 0, bytes), "cuMemsetD8");
  Require(driver_.sync_context(), "cuCtxSynchronize");
  return address;
}

void Gpu::Free(cuda::Address address) {
  Require(driver_.free(address), "cuMemFree");
}

void Gpu::CopyIn(cuda::Address to, const void* from, uint64_t bytes) {
  Require(driver_.copy_in(to, from, bytes), "cuMemcpyHtoD");
}

void Gpu::CopyOut(void* to, cuda::Address from, uint64_t bytes) {
  Require(driver_.copy_out(to, from, bytes), "cuMemcpyDtoH");
}

void* Gpu::PinnedAlloc(uint64_t bytes) {
  void* memory = nullptr;
  Require(extras_.host_alloc(&memory, bytes, cuda::kHostRegisterPortable),
          "cuMemHostAlloc");
  return memory;
}

void Gpu::PinnedFree(void* memory) {
  Require(extras_.host_free(memory), "cuMemFreeHost");
}

void Gpu::LaunchChecksum(cuda::Stream stream, cuda::Address data,
                         uint64_t bytes, cuda::Address sum) {
  unsigned long long pairs = bytes / 16;
  void* parameters[] = {&data, &pairs, &sum};
  Require(extras_.launch(checksum_, static_cast<unsigned>(multiprocessors_) * 8,
                         1, 1, 256, 1, 1, 0, stream, parameters, nullptr),
          "cuLaunchKernel");
}

void Gpu::LaunchSpin(cuda::Stream stream, int64_t cycles) {
  long long given = cycles;
  void* parameters[] = {&given};
  Require(
      extras_.launch(spin_, 1, 1, 1, 32, 1, 1, 0, stream, parameters, nullptr),
      "cuLaunchKernel");
}

GraphExec Gpu::Capture(cuda::Stream stream, const std::function<void()>& body) {
  Require(extras_.begin_capture(stream, kCaptureThreadLocal),
          "cuStreamBeginCapture");
  body();
  Graph graph = nullptr;
  Require(extras_.end_capture(stream, &graph), "cuStreamEndCapture");
  GraphExec exec = nullptr;
  Require(extras_.graph_instantiate(&exec, graph, 0), "cuGraphInstantiate");
  Require(extras_.graph_destroy(graph), "cuGraphDestroy");
  return exec;
}

double Gpu::GraphSeconds(GraphExec graph, cuda::Stream stream, int times) {
  const cuda::Event begin = NewEvent(), end = NewEvent();
  std::vector<double> seconds;
  for (int i = -2; i < times; ++i) {
    Record(begin, stream);
    Require(extras_.graph_launch(graph, stream), "cuGraphLaunch");
    Record(end, stream);
    const double took = SecondsBetween(begin, end);
    if (i >= 0) seconds.push_back(took);
  }
  return Median(seconds);
}

double Gpu::LinkRate(uint64_t piece_bytes) {
  constexpr uint64_t kSpan = uint64_t{1} << 30;
  const uint64_t span = std::max(kSpan / piece_bytes, uint64_t{2});
  auto* host = static_cast<char*>(PinnedAlloc(span * piece_bytes));
  std::memset(host, 1, span * piece_bytes);
  const cuda::Address device = Alloc(span * piece_bytes);
  const cuda::Stream stream = NewStream();
  const cuda::Event begin = NewEvent(), end = NewEvent();
  const uint64_t pieces = std::max(span, (12 * kSpan) / piece_bytes);
  std::vector<double> rates;
  for (int run = -1; run < 7; ++run) {
    Record(begin, stream);
    for (uint64_t i = 0; i < pieces; ++i) {
      const uint64_t at = i % span * piece_bytes;
      Require(
          driver_.copy_in_async(device + at, host + at, piece_bytes, stream),
          "cuMemcpyHtoDAsync");
    }
    Record(end, stream);
    const double seconds = SecondsBetween(begin, end);
    if (run >= 0) {
      rates.push_back(static_cast<double>(pieces * piece_bytes) / seconds);
    }
  }
  Free(device);
  PinnedFree(host);
  Require(driver_.stream_destroy(stream), "cuStreamDestroy");
  return Median(rates);
}

}  // namespace hoist::bench
