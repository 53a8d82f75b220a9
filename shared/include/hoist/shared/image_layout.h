// The layout of a group's tensors in its image.
//
// The image is a group's bytes in one canonical layout: tensors in order, each
// at a multiple of 256 B (cudaMalloc's alignment, for vectorised loads), the
// whole padded to 4 KiB (O_DIRECT and pages). Daemon and clients compute it
// with this one function.
#ifndef HOIST_SHARED_IMAGE_LAYOUT_H_
#define HOIST_SHARED_IMAGE_LAYOUT_H_

#include <cstdint>
#include <optional>
#include <span>
#include <vector>

#include "hoist/shared/dtype.h"

namespace hoist {

inline constexpr uint64_t kTensorAlignment = 256;
inline constexpr uint64_t kImageAlignment = 4096;
// No group may be larger; keeps all sums of sizes far from overflow.
inline constexpr uint64_t kMaxImageBytes = uint64_t{1} << 46;

// `alignment` is a power of two; nullopt on overflow.
std::optional<uint64_t> AlignUp(uint64_t value, uint64_t alignment);

// Bytes of a contiguous tensor: ceil(product(shape) * bits / 8). nullopt: a
// negative dimension, an overflow, or a sub-byte tensor that does not end on a
// byte boundary (safetensors refuses those too).
std::optional<uint64_t> ContiguousBytes(DType dtype,
                                        std::span<const int64_t> shape);

// The strides of a contiguous tensor; nullopt if their product overflows.
// Without elements, strides that overflow are 0.
std::optional<std::vector<int64_t>> ContiguousStrides(
    std::span<const int64_t> shape);

// Bytes from the first element to the end of the last; nullopt for a negative
// dimension or stride, or an overflow; 0 without elements.
std::optional<uint64_t> SpanBytes(DType dtype, std::span<const int64_t> shape,
                                  std::span<const int64_t> strides);

struct ImageLayout {
  std::vector<uint64_t> offsets;  // One per tensor, from the image's start.
  uint64_t image_bytes = 0;       // A multiple of 4 KiB; 0 if all are empty.
};

// Lays out storages of `sizes` bytes in order. Aliased tensors are one storage.
// nullopt: the image would be larger than kMaxImageBytes.
std::optional<ImageLayout> LayOutImage(std::span<const uint64_t> sizes);

}  // namespace hoist

#endif  // HOIST_SHARED_IMAGE_LAYOUT_H_
