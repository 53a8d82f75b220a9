// LibTorch tensors over hoist's bytes. Internal to torch.h and torch/staged.h.
#ifndef HOIST_TORCH_TENSOR_H_
#define HOIST_TORCH_TENSOR_H_

#include <ATen/ATen.h>
#include <c10/core/InferenceMode.h>
#include <c10/core/impl/VirtualGuardImpl.h>
#include <torch/version.h>

#include <cstdint>
#include <exception>
#include <memory>
#include <string>
#include <utility>
#include <vector>

// c10::Stream gives its CUstream from 2.11 on. Before, only a CUDA build's
// headers do, and they need CUDA's; other builds lack this file.
#if TORCH_VERSION_MAJOR == 2 && TORCH_VERSION_MINOR < 11 && \
    __has_include(<c10/cuda/impl/cuda_cmake_macros.h>)
#include <c10/cuda/CUDAStream.h>
#define HOIST_TORCH_OLD_CUDA 1
#endif

#include "hoist/hoist.h"

namespace hoist {
inline namespace v0 {
namespace torch {
namespace internal {

struct TypePair {
  DType hoist;
  c10::ScalarType torch;
};
inline const std::vector<TypePair>& Types() {
  static const std::vector<TypePair> types = {
      {DType::kBool, at::kBool},
      {DType::kU8, at::kByte},
      {DType::kI8, at::kChar},
      {DType::kU16, at::kUInt16},
      {DType::kI16, at::kShort},
      {DType::kU32, at::kUInt32},
      {DType::kI32, at::kInt},
      {DType::kU64, at::kUInt64},
      {DType::kI64, at::kLong},
      {DType::kF16, at::kHalf},
      {DType::kBF16, at::kBFloat16},
      {DType::kF32, at::kFloat},
      {DType::kF64, at::kDouble},
      {DType::kC64, at::kComplexFloat},
      {DType::kC128, at::kComplexDouble},
      {DType::kF8E4M3, at::kFloat8_e4m3fn},
      {DType::kF8E5M2, at::kFloat8_e5m2},
      {DType::kF8E8M0, at::kFloat8_e8m0fnu},
      {DType::kF8E4M3FNUZ, at::kFloat8_e4m3fnuz},
      {DType::kF8E5M2FNUZ, at::kFloat8_e5m2fnuz}};
  return types;
}

// A tensor without its bytes. `offset` in elements.
struct Geometry {
  c10::ScalarType dtype = at::kByte;
  std::vector<int64_t> sizes;
  std::vector<int64_t> strides;
  int64_t offset = 0;
};

inline Geometry GeometryOf(const at::Tensor& tensor) {
  return {tensor.scalar_type(), tensor.sizes().vec(), tensor.strides().vec(),
          tensor.storage_offset()};
}
inline Geometry Bytes(uint64_t count, uint64_t offset = 0) {
  return {at::kByte,
          {static_cast<int64_t>(count)},
          {1},
          static_cast<int64_t>(offset)};
}
// The elements' span, from the first to the last.
inline uint64_t SpanOf(const Geometry& geometry) {
  int64_t last = 0;
  for (size_t i = 0; i < geometry.sizes.size(); ++i) {
    if (geometry.sizes[i] == 0) return 0;
    last += (geometry.sizes[i] - 1) * geometry.strides[i];
  }
  return (last + 1) * c10::elementSize(geometry.dtype);
}

// The mark of hoist's own storages.
inline void NotOwned(void*) {}
inline void DropKept(void* kept) {
  delete static_cast<std::shared_ptr<void>*>(kept);
}
inline c10::DataPtr Lent(const void* data, c10::Device device) {
  return {const_cast<void*>(data), nullptr, &NotOwned, device};
}
// Whether the storage shows hoist's bytes, now or later.
inline bool IsLent(const c10::Storage& storage) {
  return storage.unsafeGetStorageImpl()
             ->_mutable_data_ptr_no_checks()
             .get_deleter() == &NotOwned;
}

// For a storage that keeps its bytes alive.
inline c10::DataPtr Keeping(const void* data, std::shared_ptr<void> keeps,
                            c10::Device device) {
  return {const_cast<void*>(data), new std::shared_ptr<void>(std::move(keeps)),
          &DropKept, device};
}
// Whether the tensor shows hoist's read-only bytes, now or later.
inline bool IsHoists(const at::Tensor& tensor) {
  return IsLent(tensor.storage()) || tensor.storage()
                                             .unsafeGetStorageImpl()
                                             ->_mutable_data_ptr_no_checks()
                                             .get_deleter() == &DropKept;
}

// A storage of hoist on `device`, which shows nothing yet.
inline c10::Storage Borrow(uint64_t bytes, c10::Device device) {
  return c10::Storage(c10::make_intrusive<c10::StorageImpl>(
      c10::StorageImpl::use_byte_size_t(), static_cast<int64_t>(bytes),
      Lent(nullptr, device), /*allocator=*/nullptr, /*resizable=*/false));
}

// LibTorch can clear a storage's error from 2.12 on; before, a storage that is
// shown again gets none.
template <typename S>
auto ClearError(S& storage, int)
    -> decltype(storage.clear_data_ptr_access_error_msg_()) {
  storage.clear_data_ptr_access_error_msg_();
}
template <typename S>
void ClearError(S&, long) {}
template <typename S>
auto SetError(S& storage, const std::string& why, int)
    -> decltype(storage.clear_data_ptr_access_error_msg_()) {
  storage.release_data_and_set_meta_custom_data_ptr_error_msg_(why);
}
template <typename S>
void SetError(S&, const std::string&, long) {}

// Makes all tensors over the storage show `data`,
inline void Show(const c10::Storage& storage, c10::DataPtr data) {
  c10::StorageImpl& impl = *storage.unsafeGetStorageImpl();
  ClearError(impl, 0);
  impl.set_data_ptr_noswap(std::move(data));
}
// or nothing; an access then throws.
inline void Hide(const c10::Storage& storage, const std::string& why) {
  c10::StorageImpl& impl = *storage.unsafeGetStorageImpl();
  impl.set_data_ptr_noswap(Lent(nullptr, storage.device()));
  SetError(impl, why, 0);
}

// `inference`: an inference tensor, as set_data needs if the tensor that takes
// it over is one.
inline at::Tensor View(c10::Storage storage, const Geometry& geometry,
                       bool inference = false) {
  const c10::InferenceMode mode(inference);
  const bool cuda = storage.device_type() == c10::DeviceType::CUDA;
  at::Tensor made = at::detail::make_tensor<c10::TensorImpl>(
      std::move(storage),
      c10::DispatchKeySet(cuda ? c10::DispatchKey::CUDA
                               : c10::DispatchKey::CPU),
      c10::scalarTypeToTypeMeta(geometry.dtype));
  made.unsafeGetTensorImpl()->set_sizes_and_strides(
      geometry.sizes, geometry.strides, geometry.offset);
  return made;
}

// LibTorch does not exchange a meta tensor's memory for a CPU's or a GPU's, but
// lets the tensor change its device.
template <typename I>
auto LeaveMeta(I& impl, c10::Device device, int)
    -> decltype(impl._change_backend_component_keys(device)) {
  impl._change_backend_component_keys(device);
}
template <typename I>
void LeaveMeta(I&, c10::Device, long) {
  TORCH_CHECK(
      false, "hoist: LibTorch ", TORCH_VERSION,
      " cannot give a tensor of the meta device memory; give the module "
      "memory, or use hoist::torch::StagedTensors");
}

// Makes `tensor`, the same object, show the bytes of `value`.
inline void SetData(const at::Tensor& tensor, const at::Tensor& value) {
  if (tensor.is_meta()) {
    LeaveMeta(*tensor.unsafeGetTensorImpl(), value.device(), 0);
  }
  tensor.set_data(value);
}

// Runs a call; torch's exceptions become a Status.
template <typename Call>
Status Catching(const Call& call) {
  try {
    return call();
  } catch (const c10::OutOfMemoryError& error) {
    return Status(Code::kResourceExhausted, error.what_without_backtrace());
  } catch (const c10::Error& error) {
    return Status(Code::kUnknown, error.what_without_backtrace());
  } catch (const std::exception& error) {
    return Status(Code::kUnknown, error.what());
  }
}

template <typename S>
auto NativeHandle(const S& stream, int)
    -> decltype(static_cast<void*>(stream.native_handle())) {
  return stream.native_handle();
}
template <typename S>
void* NativeHandle(const S& stream, long) {
#ifdef HOIST_TORCH_OLD_CUDA
  return static_cast<void*>(c10::cuda::CUDAStream(stream).stream());
#else
  // Not reached: such a build has no CUDA device, hence no such stream.
  TORCH_CHECK(false, "hoist: LibTorch ", TORCH_VERSION,
              " without CUDA has no handle for ", stream);
#endif
}
// The device's current stream, for hoist's calls.
inline hoist_stream CurrentStream(c10::Device device) {
  if (device.type() != c10::DeviceType::CUDA) return nullptr;
  const c10::impl::VirtualGuardImpl guard(device.type());
  return static_cast<hoist_stream>(NativeHandle(guard.getStream(device), 0));
}

// hoistd's device as torch knows it; `data` is an address on it, or nullptr.
inline Result<c10::Device> TorchDevice(const Session& session, uint32_t index,
                                       const void* data) {
  for (const hoist_device_info& info : session.devices()) {
    if (info.index != index) continue;
    if (info.kind != HOIST_DEVICE_CUDA) return c10::Device(at::kCPU);
    if (!at::hasCUDA()) {
      return Status(Code::kFailedPrecondition,
                    "hoistd's device " + std::to_string(index) +
                        " is a GPU, and LibTorch " TORCH_VERSION
                        " sees none; it needs a build with CUDA that is linked "
                        "(-Wl,--no-as-needed), and see CUDA_VISIBLE_DEVICES");
    }
    at::globalContext().lazyInitDevice(at::kCUDA);
    if (data == nullptr) {
      return c10::impl::VirtualGuardImpl(at::kCUDA).getDevice();
    }
    return at::globalContext().getDeviceFromPtr(const_cast<void*>(data),
                                                at::kCUDA);
  }
  return Status(Code::kNotFound,
                "hoistd has no device " + std::to_string(index));
}

}  // namespace internal

}  // namespace torch
}  // namespace v0
}  // namespace hoist

#endif  // HOIST_TORCH_TENSOR_H_
