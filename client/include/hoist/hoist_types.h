// Basic types of hoist.h: errors, element types, tensors.
#ifndef HOIST_HOIST_TYPES_H_
#define HOIST_HOIST_TYPES_H_

#include <chrono>
#include <complex>
#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <memory>
#include <optional>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "hoist/hoist_c.h"

namespace hoist {
// The version separates these names from libhoist's own, and from a later
// header's, in one program.
inline namespace v0 {

// Return codes of calls: gRPC's. See hoist_c.h.
enum class Code {
  kOk = HOIST_OK,
  kCancelled = HOIST_CANCELLED,
  kUnknown = HOIST_UNKNOWN,
  kInvalidArgument = HOIST_INVALID_ARGUMENT,
  kDeadlineExceeded = HOIST_DEADLINE_EXCEEDED,
  kNotFound = HOIST_NOT_FOUND,
  kAlreadyExists = HOIST_ALREADY_EXISTS,
  kPermissionDenied = HOIST_PERMISSION_DENIED,
  kResourceExhausted = HOIST_RESOURCE_EXHAUSTED,
  kFailedPrecondition = HOIST_FAILED_PRECONDITION,
  kAborted = HOIST_ABORTED,
  kOutOfRange = HOIST_OUT_OF_RANGE,
  kUnimplemented = HOIST_UNIMPLEMENTED,
  kInternal = HOIST_INTERNAL,
  kUnavailable = HOIST_UNAVAILABLE,
  kDataLoss = HOIST_DATA_LOSS,
  kUnauthenticated = HOIST_UNAUTHENTICATED,
};

// Ok, or an error and its remedy.
class [[nodiscard]] Status {
 public:
  Status() = default;  // Ok.
  // Usually from a hoist_error.
  Status(Code code, std::string message)
      : code_(code), message_(std::move(message)) {}

  bool ok() const { return code_ == Code::kOk; }           // No error.
  Code code() const { return code_; }                      // Its kind.
  const std::string& message() const { return message_; }  // Empty if ok.
  // "NOT_FOUND: ..."
  std::string ToString() const {
    std::string text = hoist_code_name(static_cast<int>(code_));
    return ok() ? text : text + ": " + message_;
  }

 private:
  Code code_ = Code::kOk;
  std::string message_;
};

// A value, or the error. Taking the value of an error prints it and aborts.
template <typename T>
class [[nodiscard]] Result {
 public:
  // A success.
  Result(T value) : value_(std::move(value)) {}  // NOLINT
  // A failure.
  Result(Status status) : status_(std::move(status)) {}  // NOLINT

  bool ok() const { return value_.has_value(); }    // There is a value.
  const Status& status() const { return status_; }  // Ok if there is one.
  T& value() & { return Checked(); }                // Aborts if there is none.
  // As above.
  const T& value() const& { return const_cast<Result*>(this)->Checked(); }
  T&& value() && { return std::move(Checked()); }      // As above.
  T& operator*() & { return Checked(); }               // As value().
  const T& operator*() const& { return value(); }      // As value().
  T&& operator*() && { return std::move(Checked()); }  // As value().
  T* operator->() { return &Checked(); }               // As value().
  const T* operator->() const { return &value(); }     // As value().

 private:
  T& Checked() {
    if (!ok()) {
      std::fprintf(stderr, "hoist: value of a failed Result: %s\n",
                   status_.ToString().c_str());
      std::abort();
    }
    return *value_;
  }

  Status status_;
  std::optional<T> value_;
};

// Two-byte floats, as bits: C++17 has no such types.
struct Float16 {
  uint16_t bits;
};
// See Float16.
struct BFloat16 {
  uint16_t bits;
};

// Targets of Session::Prefetch.
enum class Tier {
  kDevice = HOIST_TIER_DEVICE,
  kHost = HOIST_TIER_HOST,
  kDisk = HOIST_TIER_DISK
};

// Safetensors' element types.
enum class DType {
  kBool = HOIST_BOOL,
  kU8 = HOIST_U8,
  kI8 = HOIST_I8,
  kU16 = HOIST_U16,
  kI16 = HOIST_I16,
  kU32 = HOIST_U32,
  kI32 = HOIST_I32,
  kU64 = HOIST_U64,
  kI64 = HOIST_I64,
  kF16 = HOIST_F16,
  kBF16 = HOIST_BF16,
  kF32 = HOIST_F32,
  kF64 = HOIST_F64,
  kC64 = HOIST_C64,
  kC128 = HOIST_C128,
  kF8E4M3 = HOIST_F8_E4M3,
  kF8E5M2 = HOIST_F8_E5M2,
  kF8E8M0 = HOIST_F8_E8M0,
  kF8E4M3FNUZ = HOIST_F8_E4M3FNUZ,
  kF8E5M2FNUZ = HOIST_F8_E5M2FNUZ,
  kF6E2M3 = HOIST_F6_E2M3,
  kF6E3M2 = HOIST_F6_E3M2,
  kF4 = HOIST_F4,
};

inline const char* NameOf(DType dtype) {
  return hoist_dtype_name(static_cast<int>(dtype));
}
inline int BitsOf(DType dtype) {
  return hoist_dtype_bits(static_cast<int>(dtype));
}

namespace internal {

template <DType kWhich>
struct Is {
  static constexpr DType kIs = kWhich;
};
template <typename T>
struct DTypeOf;  // No such element type.
template <>
struct DTypeOf<bool> : Is<DType::kBool> {};
template <>
struct DTypeOf<uint8_t> : Is<DType::kU8> {};
template <>
struct DTypeOf<int8_t> : Is<DType::kI8> {};
template <>
struct DTypeOf<uint16_t> : Is<DType::kU16> {};
template <>
struct DTypeOf<int16_t> : Is<DType::kI16> {};
template <>
struct DTypeOf<uint32_t> : Is<DType::kU32> {};
template <>
struct DTypeOf<int32_t> : Is<DType::kI32> {};
template <>
struct DTypeOf<uint64_t> : Is<DType::kU64> {};
template <>
struct DTypeOf<int64_t> : Is<DType::kI64> {};
template <>
struct DTypeOf<Float16> : Is<DType::kF16> {};
template <>
struct DTypeOf<BFloat16> : Is<DType::kBF16> {};
template <>
struct DTypeOf<float> : Is<DType::kF32> {};
template <>
struct DTypeOf<double> : Is<DType::kF64> {};
template <>
struct DTypeOf<std::complex<float>> : Is<DType::kC64> {};
template <>
struct DTypeOf<std::complex<double>> : Is<DType::kC128> {};

template <typename Struct>
Struct Sized() {
  Struct value = {};
  value.struct_size = sizeof(Struct);
  return value;
}

// Calls the C API; converts its error to a Status, and frees it.
template <typename Function, typename... Given>
Status Call(Function function, const Given&... given) {
  hoist_error* error = nullptr;
  const int code = function(given..., &error);
  if (code == HOIST_OK) return Status();
  Status status(static_cast<Code>(code), hoist_error_message(error));
  hoist_error_free(error);
  return status;
}

// The same for a call whose last argument is an `Out` that it fills.
template <typename Kind, typename Out = Kind, typename Function,
          typename... Given>
Result<Kind> Take(Function function, const Given&... given) {
  Out out = {};
  Status status = Call(function, given..., &out);
  if (!status.ok()) return status;
  return Kind(out);
}

// For the C API; 0 for a time below 0.
inline uint64_t Count(std::chrono::milliseconds time) {
  return time.count() < 0 ? 0 : static_cast<uint64_t>(time.count());
}

}  // namespace internal

// A tensor of a lease or a model: a view, valid as long as that is.
class TensorView {
 public:
  // From the C API.
  explicit TensorView(const hoist_tensor_info& info) : info_(info) {}

  std::string_view name() const { return info_.name; }  // In the model.
  // Of its elements.
  DType dtype() const { return static_cast<DType>(info_.dtype); }
  int rank() const { return info_.rank; }              // How many dimensions.
  int64_t dim(int i) const { return info_.shape[i]; }  // 0 <= i < rank().
  std::vector<int64_t> shape() const {                 // All dimensions.
    return {info_.shape, info_.shape + info_.rank};
  }
  std::vector<int64_t> strides() const {  // In elements.
    return {info_.strides, info_.strides + info_.rank};
  }
  // From the image's start.
  uint64_t offset_bytes() const { return info_.offset_bytes; }
  // Span of the elements.
  uint64_t size_bytes() const { return info_.size_bytes; }
  // Of a U8 tensor from a GGUF file: ggml's type of its packed blocks, "Q4_K".
  std::string_view block_type() const {
    return info_.block_type == nullptr ? "" : info_.block_type;
  }
  // On the lease's device; nullptr without elements, or without a lease.
  const void* raw() const { return info_.data; }
  // InvalidArgument: its elements are not of type T.
  template <typename T>
  Result<const T*> data() const {
    if (internal::DTypeOf<T>::kIs != dtype()) {
      return Status(Code::kInvalidArgument,
                    std::string("tensor \"") + info_.name + "\" is " +
                        NameOf(dtype()) + ", not " +
                        NameOf(internal::DTypeOf<T>::kIs));
    }
    return static_cast<const T*>(info_.data);
  }

 private:
  hoist_tensor_info info_;
};

namespace internal {

// Owns a handle of the C API, which kFree ends, and makes calls with it.
template <typename Of, void (*kFree)(Of*)>
class Handle {
 protected:
  explicit Handle(Of* handle) : handle_(handle) {}

  template <typename Function, typename... Given>
  Status Call(Function function, const Given&... given) const {
    return internal::Call(function, handle_.get(), given...);
  }
  template <typename Kind, typename Out = Kind, typename Function,
            typename... Given>
  Result<Kind> Take(Function function, const Given&... given) const {
    return internal::Take<Kind, Out>(function, handle_.get(), given...);
  }
  // The struct that the call fills, if it can.
  template <typename Struct, typename Function, typename... Given>
  Struct Filled(Function function, const Given&... given) const {
    auto value = Sized<Struct>();
    function(handle_.get(), given..., &value, nullptr);
    return value;
  }
  // The tensor that the call describes.
  template <typename Function, typename... Given>
  Result<TensorView> TakeTensor(Function function,
                                const Given&... given) const {
    auto info = Sized<hoist_tensor_info>();
    Status found = Call(function, given..., &info);
    if (!found.ok()) return found;
    return TensorView(info);
  }

  struct Free {
    void operator()(Of* handle) const { kFree(handle); }
  };
  std::unique_ptr<Of, Free> handle_;
};

}  // namespace internal

}  // namespace v0
}  // namespace hoist

#endif  // HOIST_HOIST_TYPES_H_
