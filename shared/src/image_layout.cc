#include "hoist/shared/image_layout.h"

namespace hoist {

std::optional<uint64_t> AlignUp(uint64_t value, uint64_t alignment) {
  uint64_t sum;
  if (__builtin_add_overflow(value, alignment - 1, &sum)) return std::nullopt;
  return sum & ~(alignment - 1);
}

std::optional<uint64_t> ContiguousBytes(DType dtype,
                                        std::span<const int64_t> shape) {
  uint64_t elements = 1;
  for (int64_t dimension : shape) {
    if (dimension < 0) return std::nullopt;
    if (__builtin_mul_overflow(elements, static_cast<uint64_t>(dimension),
                               &elements)) {
      return std::nullopt;
    }
  }
  uint64_t bits;
  if (__builtin_mul_overflow(elements, static_cast<uint64_t>(BitsOf(dtype)),
                             &bits)) {
    return std::nullopt;
  }
  if (bits % 8 != 0) return std::nullopt;
  return bits / 8;
}

std::optional<ImageLayout> LayOutImage(std::span<const uint64_t> sizes) {
  ImageLayout layout;
  layout.offsets.reserve(sizes.size());
  uint64_t end = 0;
  for (uint64_t size : sizes) {
    // Both sums stay below 2^48, since `end` and `size` are bounded first.
    const uint64_t offset = *AlignUp(end, kTensorAlignment);
    if (size > kMaxImageBytes || offset + size > kMaxImageBytes) {
      return std::nullopt;
    }
    layout.offsets.push_back(offset);
    end = offset + size;
  }
  layout.image_bytes = *AlignUp(end, kImageAlignment);
  return layout;
}

}  // namespace hoist
