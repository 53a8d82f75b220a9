// Element types of tensors.
//
// Those of safetensors 0.8 (safetensors/src/tensor.rs, `Dtype`), and
// complex128, for published tensors. The numbers equal those of
// proto/hoist/v1/types.proto and of hoist.h's C API.
#ifndef HOIST_SHARED_DTYPE_H_
#define HOIST_SHARED_DTYPE_H_

#include <cstdint>
#include <optional>
#include <string_view>

namespace hoist {

enum class DType : uint8_t {
  kUnspecified = 0,
  kBool = 1,
  kU8 = 2,
  kI8 = 3,
  kU16 = 4,
  kI16 = 5,
  kU32 = 6,
  kI32 = 7,
  kU64 = 8,
  kI64 = 9,
  kF16 = 10,
  kBF16 = 11,
  kF32 = 12,
  kF64 = 13,
  kC64 = 14,
  kC128 = 15,
  kF8E4M3 = 16,
  kF8E5M2 = 17,
  kF8E8M0 = 18,
  kF8E4M3FNUZ = 19,
  kF8E5M2FNUZ = 20,
  kF6E2M3 = 21,
  kF6E3M2 = 22,
  kF4 = 23,
};
inline constexpr int kDTypeCount = 24;  // With kUnspecified.

// Bits of one element; 4 and 6 for the sub-byte types, 0 for kUnspecified.
int BitsOf(DType dtype);

// safetensors' name ("BF16"); "C128" is ours. "?" if unspecified.
std::string_view NameOf(DType dtype);

// nullopt: safetensors has no such type (nor is it "C128").
std::optional<DType> DTypeFromName(std::string_view name);

// nullopt if `number` is 0, or none of the values above.
std::optional<DType> DTypeFromNumber(int64_t number);

}  // namespace hoist

#endif  // HOIST_SHARED_DTYPE_H_
