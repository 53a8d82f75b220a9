#ifndef HOIST_DAEMON_IO_ALIGNED_BUFFER_H_
#define HOIST_DAEMON_IO_ALIGNED_BUFFER_H_

#include <cstddef>
#include <cstdint>
#include <span>
#include <utility>

#include "absl/status/statusor.h"

namespace hoistd {

// Owns zeroed, page-aligned memory, fit for O_DIRECT. Move-only.
class AlignedBuffer {
 public:
  AlignedBuffer() = default;
  AlignedBuffer(AlignedBuffer&& other) noexcept
      : data_(std::exchange(other.data_, nullptr)),
        bytes_(std::exchange(other.bytes_, 0)) {}
  AlignedBuffer& operator=(AlignedBuffer&& other) noexcept;
  ~AlignedBuffer();

  // `bytes` > 0. ResourceExhausted: no memory.
  static absl::StatusOr<AlignedBuffer> Create(uint64_t bytes);

  std::byte* data() const { return data_; }
  std::span<std::byte> span() const { return {data_, bytes_}; }

 private:
  AlignedBuffer(std::byte* data, size_t bytes) : data_(data), bytes_(bytes) {}

  std::byte* data_ = nullptr;
  size_t bytes_ = 0;
};

}  // namespace hoistd

#endif  // HOIST_DAEMON_IO_ALIGNED_BUFFER_H_
