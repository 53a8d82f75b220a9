// Orders a worker's work with hoistd's copies: its streams wait for words, and
// write them.
#ifndef HOIST_CLIENT_SRC_DEVICE_STREAM_ORDER_H_
#define HOIST_CLIENT_SRC_DEVICE_STREAM_ORDER_H_

#include <array>
#include <chrono>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <span>

#include "hoist/shared/cuda_driver.h"
#include "hoist/shared/lane_layout.h"
#include "hoist/shared/status.h"

namespace hoist {

struct WordOp {
  enum class Kind { kWait, kWrite };

  Kind kind = Kind::kWait;
  lane::Word* word = nullptr;  // In registered memory.
  uint32_t value = 0;          // Compared by lane::Reached.
};

// Three kinds: on the CPU, for emulated devices; by CUDA stream memory
// operations; by CUDA host functions, where a GPU or a setting lacks those.
//
// Threads:  thread-safe.
class StreamOrder {
 public:
  static constexpr size_t kMaxOps = 3;

  virtual ~StreamOrder() = default;

  // Makes the words of `memory` usable until Unregister.
  virtual Status Register(std::span<std::byte> memory) = 0;
  virtual void Unregister(std::span<std::byte> memory) = 0;

  // Put runs its ops at once, and so may block.
  virtual bool on_cpu() const = 0;
  // Only one of a plan's streams may wait at a time, in the order of Puts:
  // their waits share a thread.
  virtual bool one_at_a_time() const = 0;

  virtual Result<bool> IsCapturing(cuda::Stream stream) = 0;
  // Enqueues the ops in order, at most kMaxOps, behind earlier work on the
  // stream. DeadlineExceeded: on_cpu(), and a word did not come.
  virtual Status Put(cuda::Stream stream, std::span<const WordOp> ops) = 0;
  // Later work on `later` runs after earlier work on `earlier`.
  // FailedPrecondition: only one of them is under capture.
  virtual Status After(cuda::Stream later, cuda::Stream earlier) = 0;
  virtual Status Synchronize(cuda::Stream stream) = 0;
  // The work on the stream so far, which another thread may await whatever
  // becomes of the stream: its end, or a capture. FailedPrecondition: it is
  // under capture now.
  using Mark = std::shared_ptr<const cuda::Event>;
  virtual Result<Mark> MarkWork(cuda::Stream) { return Mark(); }
  virtual Status Await(const Mark&) { return Status(); }
  virtual Status SynchronizeAll() = 0;
};

// `wait_limit`: the longest wait.
std::unique_ptr<StreamOrder> CreateEmulatedOrder(
    std::chrono::milliseconds wait_limit);

// In the primary context of the device with this UUID. By host functions if the
// GPU cannot wait for words in host memory, or with HOIST_STREAM_OPS=0 in the
// environment.
Result<std::unique_ptr<StreamOrder>> CreateCudaOrder(
    const std::array<uint8_t, 16>& uuid);

}  // namespace hoist

#endif  // HOIST_CLIENT_SRC_DEVICE_STREAM_ORDER_H_
