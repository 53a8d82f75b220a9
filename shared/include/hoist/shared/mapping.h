#ifndef HOIST_SHARED_MAPPING_H_
#define HOIST_SHARED_MAPPING_H_

#include <sys/mman.h>

#include <cstddef>
#include <cstdint>
#include <span>
#include <utility>

#include "hoist/shared/status.h"

namespace hoist {

// Owns one range of address space; unmaps it on destruction. Move-only.
class Mapping {
 public:
  Mapping() = default;
  Mapping(Mapping&& other) noexcept
      : data_(std::exchange(other.data_, nullptr)),
        size_(std::exchange(other.size_, 0)) {}
  Mapping& operator=(Mapping&& other) noexcept {
    if (this != &other) {
      reset();
      data_ = std::exchange(other.data_, nullptr);
      size_ = std::exchange(other.size_, 0);
    }
    return *this;
  }
  ~Mapping() { reset(); }

  enum class Access { kRead, kReadWrite };

  // Maps [offset, offset + size) of `fd`, shared. `size` > 0, `offset` a
  // multiple of the page size.
  static Result<Mapping> OfFd(int fd, size_t size, Access access,
                              uint64_t offset = 0);
  // Address space without memory, for placing mappings side by side.
  static Result<Mapping> Reserve(size_t size);

  // Replaces [at, at + size) of this range by a shared mapping of `fd`. The
  // destructor unmaps it with the rest.
  Status PlaceFd(size_t at, int fd, size_t size, Access access,
                 uint64_t offset = 0);
  // Restores address space without memory at [at, at + size).
  Status Unplace(size_t at, size_t size);

  std::byte* data() const { return static_cast<std::byte*>(data_); }
  size_t size() const { return size_; }
  std::span<std::byte> span() const { return {data(), size_}; }
  void reset();

 private:
  Mapping(void* data, size_t size) : data_(data), size_(size) {}

  void* data_ = nullptr;
  size_t size_ = 0;
};

}  // namespace hoist

#endif  // HOIST_SHARED_MAPPING_H_
