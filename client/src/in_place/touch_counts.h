// Counters on a device: kernels add, this process reads.
#ifndef HOIST_CLIENT_SRC_IN_PLACE_TOUCH_COUNTS_H_
#define HOIST_CLIENT_SRC_IN_PLACE_TOUCH_COUNTS_H_

#include <array>
#include <cstdint>
#include <memory>
#include <span>
#include <vector>

#include "hoist/shared/status.h"

namespace hoist {

// Threads: one at a time; kernels may add meanwhile.
class TouchCounts {
 public:
  virtual ~TouchCounts() = default;

  // The increments since the last call.
  Result<std::span<const uint32_t>> Take();

 protected:
  explicit TouchCounts(uint64_t length)
      : before_(length), now_(length), added_(length) {}

 private:
  virtual Status Read(std::span<uint32_t> into) = 0;

  std::vector<uint32_t> before_, now_, added_;
};

// `counts`: `length` counters, in this process's memory.
Result<std::unique_ptr<TouchCounts>> CountsOnCpu(const void* counts,
                                                 uint64_t length);
// On the GPU with this UUID. Does not wait for others' work on streams.
Result<std::unique_ptr<TouchCounts>> CountsOnGpu(
    const std::array<uint8_t, 16>& uuid, const void* counts, uint64_t length);

}  // namespace hoist

#endif  // HOIST_CLIENT_SRC_IN_PLACE_TOUCH_COUNTS_H_
