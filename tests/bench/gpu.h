// The benches' own use of a GPU: streams, timing events, kernels, memory.
#ifndef HOIST_TESTS_BENCH_GPU_H_
#define HOIST_TESTS_BENCH_GPU_H_

#include <array>
#include <cstdint>
#include <functional>
#include <string>
#include <vector>

#include "tests/bench/cuda_extras.h"

namespace hoist::bench {

// The primary context of device 0 or of the given device, current on the thread
// that made it. Its objects live as long as the process; a bench ends soon.
//
// Threads: one.
class Gpu {
 public:
  Gpu();  // Ordinal 0, which a hoistd of the same environment calls 0 too.
  explicit Gpu(const uint8_t uuid[16]);
  Gpu(const Gpu&) = delete;
  Gpu& operator=(const Gpu&) = delete;

  std::string name() const;
  const cuda::Driver& driver() const { return driver_; }
  const CudaExtras& extras() const { return extras_; }

  cuda::Stream NewStream();
  cuda::Event NewEvent();  // With timing.
  void Record(cuda::Event event, cuda::Stream stream);
  double SecondsBetween(cuda::Event begin, cuda::Event end);  // Waits for end.
  void Sync(cuda::Stream stream);

  cuda::Address Alloc(uint64_t bytes);  // Zeroed.
  void Free(cuda::Address address);
  void CopyIn(cuda::Address to, const void* from, uint64_t bytes);
  void CopyOut(void* to, cuda::Address from, uint64_t bytes);
  void* PinnedAlloc(uint64_t bytes);
  void PinnedFree(void* memory);

  // Adds the checksum of `data` to the 8-byte word at `sum`.
  void LaunchChecksum(cuda::Stream stream, cuda::Address data, uint64_t bytes,
                      cuda::Address sum);
  void LaunchSpin(cuda::Stream stream, int64_t cycles);

  // Captures the work of `body` on the stream as a graph.
  GraphExec Capture(cuda::Stream stream, const std::function<void()>& body);
  // Seconds per launch, between two events: the median of `times` launches,
  // after two for warm-up.
  double GraphSeconds(GraphExec graph, cuda::Stream stream, int times);

  // Bytes per second of pinned host-to-device copies of this size on one
  // stream: the median of seven runs of about a quarter of a second, after one
  // for warm-up.
  double LinkRate(uint64_t piece_bytes);

  void Require(cuda::Error error, const char* what) const;

 private:
  void Open(cuda::DeviceId device);

  cuda::Driver driver_ = {};
  CudaExtras extras_ = {};
  cuda::DeviceId device_ = 0;
  int multiprocessors_ = 1;
  Function checksum_ = nullptr;
  Function spin_ = nullptr;
};

}  // namespace hoist::bench

#endif  // HOIST_TESTS_BENCH_GPU_H_
