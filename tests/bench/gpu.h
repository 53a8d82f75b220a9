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

// Device 0's or the given device's primary context, current on the thread that
// made it. What it hands out lives as long as the process; a bench ends soon.
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

  // Adds the checksum of what lies there to the 8-byte word at `sum`.
  void LaunchChecksum(cuda::Stream stream, cuda::Address data, uint64_t bytes,
                      cuda::Address sum);
  void LaunchSpin(cuda::Stream stream, int64_t cycles);

  // What `body` puts on the stream, as a graph.
  GraphExec Capture(cuda::Stream stream, const std::function<void()>& body);
  // Seconds of one launch, as the median of `times` after two warm-ups; each is
  // between two events.
  double GraphSeconds(GraphExec graph, cuda::Stream stream, int times);

  // Bytes a second of pinned host-to-device copies of this size, one stream:
  // the median of seven runs of about a quarter second's worth, after one to
  // warm up.
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
