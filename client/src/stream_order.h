// How a worker's work is put in order with hoistd's copies: words that are
// waited for and written where the work runs.
#ifndef HOIST_CLIENT_SRC_STREAM_ORDER_H_
#define HOIST_CLIENT_SRC_STREAM_ORDER_H_

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
  uint32_t value = 0;          // Waited for as lane::Reached says.
};

// Three ways: on the CPU, for emulated devices; by a CUDA stream's memory
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

  // Put does its ops here and now, and so may block.
  virtual bool on_cpu() const = 0;
  // Of one plan's streams only one may wait at a time, in the order of Puts:
  // their waits share a thread.
  virtual bool one_at_a_time() const = 0;

  virtual Result<bool> IsCapturing(cuda::Stream stream) = 0;
  // Does the ops in order, at most kMaxOps, behind what is on the stream.
  // DeadlineExceeded: on_cpu(), and a word did not come.
  virtual Status Put(cuda::Stream stream, std::span<const WordOp> ops) = 0;
  // What is put on `later` from now on runs behind what is on `earlier`.
  // FailedPrecondition: one of them is being captured, the other is not.
  virtual Status After(cuda::Stream later, cuda::Stream earlier) = 0;
  virtual Status Synchronize(cuda::Stream stream) = 0;
  virtual Status SynchronizeAll() = 0;
};

// `wait_limit`: how long a wait may last.
std::unique_ptr<StreamOrder> CreateEmulatedOrder(
    std::chrono::milliseconds wait_limit);

// In the primary context of the device with this UUID. Host functions are used
// where the GPU cannot wait for words in host memory, or the environment says
// HOIST_STREAM_OPS=0.
Result<std::unique_ptr<StreamOrder>> CreateCudaOrder(
    const std::array<uint8_t, 16>& uuid);

}  // namespace hoist

#endif  // HOIST_CLIENT_SRC_STREAM_ORDER_H_
