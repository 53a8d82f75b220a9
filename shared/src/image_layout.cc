#include "hoist/shared/image_layout.h"

#include <algorithm>
#include <limits>

namespace hoist {
namespace {

// True even if the product of the other dimensions overflows.
bool IsEmpty(std::span<const int64_t> shape) {
  return std::find(shape.begin(), shape.end(), 0) != shape.end();
}

}  // namespace

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

std::optional<std::vector<int64_t>> ContiguousStrides(
    std::span<const int64_t> shape) {
  std::vector<int64_t> strides(shape.size());
  int64_t step = 1;
  for (size_t i = shape.size(); i > 0; --i) {
    strides[i - 1] = step;
    // As NumPy and PyTorch have it, an empty dimension steps like one of 1.
    const int64_t size = shape[i - 1] > 1 ? shape[i - 1] : 1;
    if (!__builtin_mul_overflow(step, size, &step)) continue;
    if (!IsEmpty(shape)) return std::nullopt;
    step = 0;
  }
  return strides;
}

std::optional<uint64_t> SpanBytes(DType dtype, std::span<const int64_t> shape,
                                  std::span<const int64_t> strides) {
  if (shape.size() != strides.size()) return std::nullopt;
  for (size_t i = 0; i < shape.size(); ++i) {
    if (shape[i] < 0 || strides[i] < 0) return std::nullopt;
  }
  if (IsEmpty(shape)) return 0;
  uint64_t last = 0;  // The last element's place.
  for (size_t i = 0; i < shape.size(); ++i) {
    uint64_t reach;
    if (__builtin_mul_overflow(static_cast<uint64_t>(shape[i] - 1),
                               static_cast<uint64_t>(strides[i]), &reach) ||
        __builtin_add_overflow(last, reach, &last)) {
      return std::nullopt;
    }
  }
  uint64_t elements, bits;
  if (__builtin_add_overflow(last, uint64_t{1}, &elements) ||
      __builtin_mul_overflow(elements, static_cast<uint64_t>(BitsOf(dtype)),
                             &bits) ||
      bits > std::numeric_limits<uint64_t>::max() - 7) {
    return std::nullopt;
  }
  return (bits + 7) / 8;
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
