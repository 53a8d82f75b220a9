// Copies between the host and a device, on streams.
#ifndef HOIST_CLIENT_SRC_DEVICE_STREAM_COPIES_H_
#define HOIST_CLIENT_SRC_DEVICE_STREAM_COPIES_H_

#include <array>
#include <cstdint>
#include <memory>

#include "hoist/shared/cuda_driver.h"
#include "hoist/shared/status.h"

namespace hoist {

// Threads:  thread-safe.
class StreamCopies {
 public:
  virtual ~StreamCopies() = default;

  // Behind earlier work on the stream.
  virtual Status ToDevice(void* to, const void* from, uint64_t bytes,
                          cuda::Stream stream) = 0;
  virtual Status ToHost(void* to, const void* from, uint64_t bytes,
                        cuda::Stream stream) = 0;
};

// Immediate: device memory is host memory.
std::unique_ptr<StreamCopies> CreateEmulatedCopies();
// In the primary context of the device with this UUID.
Result<std::unique_ptr<StreamCopies>> CreateCudaCopies(
    const std::array<uint8_t, 16>& uuid);

}  // namespace hoist

#endif  // HOIST_CLIENT_SRC_DEVICE_STREAM_COPIES_H_
