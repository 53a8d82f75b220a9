// A GPU's copies: a CUDA stream, and a thread that waits for their end.
#ifndef HOIST_DAEMON_DEVICE_CUDA_STREAM_H_
#define HOIST_DAEMON_DEVICE_CUDA_STREAM_H_

#include <cstddef>
#include <cstdint>
#include <deque>
#include <span>
#include <thread>
#include <vector>

#include "absl/base/thread_annotations.h"
#include "absl/functional/function_ref.h"
#include "absl/synchronization/mutex.h"
#include "daemon/base/timed_cond_var.h"
#include "daemon/device/cuda_device.h"

namespace hoistd {

// Copies of unregistered host memory block the caller, and run at a third of
// the link's rate or less.
//
// Threads:  calls come from one owner thread; `Complete` is the stream's own.
//           It is a thread instead of cuLaunchHostFunc, whose callbacks may not
//           enter the driver, and learn of no errors.
// Owns:     the CUDA stream and its events.
class CudaStream final : public CopyStream {
 public:
  // `device` outlives it. Then Start().
  CudaStream(CudaDevice& device, hoist::cuda::Stream stream);
  CudaStream(const CudaStream&) = delete;
  CudaStream& operator=(const CudaStream&) = delete;
  ~CudaStream() override;

  // Once, first of all. StartThread's errors.
  absl::Status Start();
  absl::Status CopyIn(uint64_t to_offset,
                      std::span<const std::byte> from) override;
  absl::Status CopyRowsIn(const HostRows& rows) override;
  absl::Status CopyOut(std::span<std::byte> to, uint64_t from_offset) override;
  // If streams cannot write words, the stream's thread does, with the delay of
  // a thread's wake-up.
  absl::Status WriteWords(std::span<const WordWrite> words) override
      ABSL_LOCKS_EXCLUDED(mu_);
  absl::Status Health() override ABSL_LOCKS_EXCLUDED(mu_);
  void Then(Done done) override ABSL_LOCKS_EXCLUDED(mu_);

 private:
  struct Waiter {
    hoist::cuda::Event event = nullptr;  // nullptr: `error` says why not.
    absl::Status error;
    Done done;
  };

  using CopyPiece =
      absl::FunctionRef<hoist::cuda::Error(uint64_t at, uint64_t bytes)>;

  // Splits the copy at the edges of registered ranges in `host`.
  absl::Status CopyInPieces(std::span<const std::byte> host, const char* what,
                            CopyPiece copy);
  // Records an event behind what is queued.
  absl::StatusOr<hoist::cuda::Event> Record() ABSL_LOCKS_EXCLUDED(mu_);
  void Push(Waiter waiter) ABSL_LOCKS_EXCLUDED(mu_);
  void Complete() ABSL_LOCKS_EXCLUDED(mu_);

  CudaDevice& device_;
  const hoist::cuda::Driver& driver_;
  const hoist::cuda::Stream stream_;
  absl::Mutex mu_;
  TimedCondVar changed_;
  std::deque<Waiter> waiters_ ABSL_GUARDED_BY(mu_);
  std::vector<hoist::cuda::Event> idle_events_ ABSL_GUARDED_BY(mu_);
  // Why the stream's thread did not write its words.
  absl::Status words_ ABSL_GUARDED_BY(mu_);
  bool stopping_ ABSL_GUARDED_BY(mu_) = false;
  std::thread thread_;
};

}  // namespace hoistd

#endif  // HOIST_DAEMON_DEVICE_CUDA_STREAM_H_
