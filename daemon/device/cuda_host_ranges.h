// The host memory that is registered with CUDA, for all GPUs of this process.
#ifndef HOIST_DAEMON_DEVICE_CUDA_HOST_RANGES_H_
#define HOIST_DAEMON_DEVICE_CUDA_HOST_RANGES_H_

#include <cstddef>
#include <cstdint>
#include <map>
#include <span>

#include "absl/base/thread_annotations.h"
#include "absl/status/status.h"
#include "absl/synchronization/mutex.h"
#include "hoist/shared/cuda_driver.h"

namespace hoistd {

// Registered memory is portable: pinned for every context at once. So the
// first GPU's call registers it, and the last one's unregisters it.
//
// Threads:  thread-safe; no lock is held over a driver call.
class CudaHostRanges {
 public:
  explicit CudaHostRanges(const hoist::cuda::Driver& driver)
      : driver_(driver) {}

  // A context is current. AlreadyExists: the range overlaps a different one.
  absl::Status Register(std::span<std::byte> memory) ABSL_LOCKS_EXCLUDED(mu_);
  // NotFound: Register() was not called for exactly this range.
  absl::Status Unregister(std::span<std::byte> memory) ABSL_LOCKS_EXCLUDED(mu_);

  // How many of the `bytes` at `at` one copy can take: the driver refuses a
  // copy that crosses the edge of a registered range. Not 0 unless `bytes` is.
  // A later Register may add an edge, so a refused caller asks again.
  uint64_t Prefix(const std::byte* at, uint64_t bytes) const
      ABSL_LOCKS_EXCLUDED(mu_);

 private:
  struct Range {
    uint64_t bytes = 0;
    int holders = 0;
  };

  const hoist::cuda::Driver driver_;
  mutable absl::Mutex mu_;
  std::map<uintptr_t, Range> ranges_ ABSL_GUARDED_BY(mu_);
};

}  // namespace hoistd

#endif  // HOIST_DAEMON_DEVICE_CUDA_HOST_RANGES_H_
