#include "daemon/io/aligned_buffer.h"

#include <sys/mman.h>

#include <cerrno>

#include "absl/strings/str_cat.h"
#include "daemon/base/status.h"

namespace hoistd {

AlignedBuffer& AlignedBuffer::operator=(AlignedBuffer&& other) noexcept {
  if (this != &other) {
    if (data_ != nullptr) munmap(data_, bytes_);
    data_ = std::exchange(other.data_, nullptr);
    bytes_ = std::exchange(other.bytes_, 0);
  }
  return *this;
}

AlignedBuffer::~AlignedBuffer() {
  if (data_ != nullptr) munmap(data_, bytes_);
}

absl::StatusOr<AlignedBuffer> AlignedBuffer::Create(uint64_t bytes) {
  void* data = mmap(nullptr, bytes, PROT_READ | PROT_WRITE,
                    MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
  if (data == MAP_FAILED) {
    return ErrnoToStatus(errno,
                         absl::StrCat("allocate ", bytes, " bytes for I/O"));
  }
  // Huge pages: fewer pins, fewer segments in each disk command. Best effort.
  madvise(data, bytes, MADV_HUGEPAGE);
  return AlignedBuffer(static_cast<std::byte*>(data), bytes);
}

}  // namespace hoistd
