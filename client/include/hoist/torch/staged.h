// LibTorch tensors over weights that live in hoistd, for hand-written workers.
//
//   auto weights = hoist::torch::StagedTensors::Create(*session, *model, {});
//   auto scope = weights->Stage("encoder.layer.0");
//   if (!scope.ok()) return Fail(scope.status());
//   x = at::linear(x, (*scope)["encoder.layer.0.output.dense.weight"]);
//
// Header-only over hoist.h and LibTorch's public headers, C++17 where the
// LibTorch is. Built against 2.11 with CUDA and 2.13 without.
//
// Errors:   Status and Result, as hoist.h; torch's own exceptions are caught
//           and returned, but where a comment says otherwise.
// Device:   a CUDA device of hoistd's needs a LibTorch with CUDA; an emulated
//           one's weights are CPU tensors.
// Streams:  a scope belongs to the stream that was current when it began.
// Writes:   weights are read-only. A write through one faults: SIGSEGV on an
//           emulated device, an illegal memory access on a GPU.
#ifndef HOIST_TORCH_STAGED_H_
#define HOIST_TORCH_STAGED_H_

#include <ATen/ATen.h>
#include <c10/core/InferenceMode.h>
#include <c10/core/impl/VirtualGuardImpl.h>
#include <torch/version.h>

#include <cstdint>
#include <exception>
#include <functional>
#include <map>
#include <memory>
#include <mutex>
#include <string>
#include <unordered_map>
#include <utility>
#include <vector>

// c10::Stream tells its CUstream itself from 2.11 on. Before, only a CUDA
// build's headers do, which need CUDA's; this file is in no other build.
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

// What of a tensor is not its bytes. `offset` in elements.
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
// That the elements span, from the first to the last.
inline uint64_t SpanOf(const Geometry& geometry) {
  int64_t last = 0;
  for (size_t i = 0; i < geometry.sizes.size(); ++i) {
    if (geometry.sizes[i] == 0) return 0;
    last += (geometry.sizes[i] - 1) * geometry.strides[i];
  }
  return (last + 1) * c10::elementSize(geometry.dtype);
}

// Memory that is somebody else's; `device` is where.
inline c10::Storage Borrow(const void* data, uint64_t bytes,
                           c10::Device device) {
  return c10::Storage(c10::make_intrusive<c10::StorageImpl>(
      c10::StorageImpl::use_byte_size_t(), static_cast<int64_t>(bytes),
      c10::DataPtr(const_cast<void*>(data), device), /*allocator=*/nullptr,
      /*resizable=*/false));
}

// `inference`: of the kind that c10::InferenceMode makes, as set_data needs
// where the tensor that takes it over is one.
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

// Calls what may throw torch's exceptions; they come back as a Status.
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
// What hoist's calls take for the device's current stream.
inline void* CurrentStream(c10::Device device) {
  if (device.type() != c10::DeviceType::CUDA) return nullptr;
  const c10::impl::VirtualGuardImpl guard(device.type());
  return NativeHandle(guard.getStream(device), 0);
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

// A plan's groups as tensors that are built once: a group has the same tensors,
// at the same addresses, whenever it is staged, until the plan is made anew
// (a learned order, another budget).
//
// Threads:  Stage and its scopes are thread-safe; EndPass, SetBudget and
//           SetOrder want nothing staged.
class StagedTensors {
 public:
  class Scope;

  // `options` as Session::SetPlan takes them. ResourceExhausted: the budget is
  // too small, and the message says what would do.
  static Result<StagedTensors> Create(Session& session, Model model,
                                      const PlanOptions& options = {}) {
    Result<Plan> plan = session.SetPlan(model, options);
    if (!plan.ok()) return plan.status();
    auto state = std::make_unique<State>(std::move(model), std::move(*plan));
    Status made = internal::Catching([&] {
      const void* data = state->AnyAddress();
      Result<c10::Device> device =
          internal::TorchDevice(session, options.device, data);
      if (device.ok()) state->device = *device;
      return device.status();
    });
    if (!made.ok()) return made;
    return StagedTensors(std::move(state));
  }

  // The group's tensors are there for what is put on the current stream from
  // now on, until the scope ends. Groups that take turns in one place cannot be
  // staged at once: FailedPrecondition, with the budget that would do.
  Result<Scope> Stage(uint32_t group);
  Result<Scope> Stage(const std::string& group);

  // As Plan's. After each, tensors may be new ones.
  Status EndPass() { return state_->plan.EndPass().status(); }
  Status SetBudget(uint64_t bytes) { return state_->plan.SetBudget(bytes); }
  Status SetOrder(const std::vector<uint32_t>& groups) {
    return state_->plan.SetOrder(groups);
  }
  // Ask after synchronizing, before results are used.
  Status Check() const { return state_->plan.Check(); }

  const Model& model() const { return state_->model; }
  const Plan& plan() const { return state_->plan; }
  c10::Device device() const { return state_->device; }

  // For Attach: told when a group's first scope begins and its last one ends,
  // under the group's lock. `made`: the tensors are new.
  struct Watcher {
    std::function<void(uint32_t group, const std::vector<at::Tensor>& tensors,
                       bool made)>
        begun;
    std::function<void(uint32_t group)> ended;
  };
  void Watch(Watcher watcher) { state_->watcher = std::move(watcher); }

 private:
  struct Group {
    std::mutex mu;
    uint32_t scopes = 0;
    bool made = false;
    const void* address = nullptr;
    std::vector<at::Tensor> tensors;  // In image order.
    std::unordered_map<std::string, uint32_t> by_name;
  };
  struct State {
    State(Model m, Plan p)
        : model(std::move(m)),
          plan(std::move(p)),
          groups(std::make_unique<Group[]>(model.group_count())) {}

    const void* AnyAddress() const;
    Status Begin(uint32_t group, void* stream);
    Status End(uint32_t group, void* stream);
    void Make(uint32_t group, const void* address);

    Model model;
    mutable Plan plan;
    c10::Device device{at::kCPU};
    std::unique_ptr<Group[]> groups;
    Watcher watcher;
  };

  explicit StagedTensors(std::unique_ptr<State> state)
      : state_(std::move(state)) {}

  std::unique_ptr<State> state_;
};

// The right to use a group's tensors; ends with the scope, and before its
// StagedTensors does. Move-only. Tensors, and views of them, must not be used
// afterwards.
class StagedTensors::Scope {
 public:
  Scope(Scope&& other) noexcept
      : state_(std::exchange(other.state_, nullptr)),
        group_(other.group_),
        stream_(other.stream_) {}
  Scope& operator=(Scope&& other) noexcept {
    if (this != &other) {
      (void)End();
      state_ = std::exchange(other.state_, nullptr);
      group_ = other.group_;
      stream_ = other.stream_;
    }
    return *this;
  }
  // What End could say is said by the plan's next call, too.
  ~Scope() { (void)End(); }

  // What is on the stream by now is the last that reads the tensors. Again:
  // nothing happens.
  Status End() {
    State* state = std::exchange(state_, nullptr);
    return state == nullptr ? Status() : state->End(group_, stream_);
  }

  // NotFound: the group has no such tensor. FailedPrecondition: ended.
  Result<at::Tensor> tensor(const std::string& name) const {
    if (state_ == nullptr) {
      return Status(Code::kFailedPrecondition, "the scope has ended");
    }
    const Group& group = state_->groups[group_];
    const auto found = group.by_name.find(name);
    if (found == group.by_name.end()) {
      return Status(Code::kNotFound,
                    "group \"" + std::string(state_->model.group_name(group_)) +
                        "\" has no tensor \"" + name + "\"");
    }
    return group.tensors[found->second];
  }
  // Throws c10::Error where tensor() fails.
  at::Tensor operator[](const std::string& name) const {
    Result<at::Tensor> found = tensor(name);
    TORCH_CHECK(found.ok(), "hoist: ", found.status().ToString());
    return *found;
  }
  // All of the group's, in image order; none once ended.
  std::vector<at::Tensor> tensors() const {
    if (state_ == nullptr) return {};
    return state_->groups[group_].tensors;
  }
  uint32_t group() const { return group_; }

 private:
  friend class StagedTensors;
  Scope(State* state, uint32_t group, void* stream)
      : state_(state), group_(group), stream_(stream) {}

  State* state_;
  uint32_t group_;
  void* stream_;
};

inline Result<StagedTensors::Scope> StagedTensors::Stage(uint32_t group) {
  void* stream = nullptr;
  Status begun = internal::Catching([&] {
    stream = internal::CurrentStream(state_->device);
    return state_->Begin(group, stream);
  });
  if (!begun.ok()) return begun;
  return Scope(state_.get(), group, stream);
}

inline Result<StagedTensors::Scope> StagedTensors::Stage(
    const std::string& group) {
  Result<uint32_t> index = state_->model.FindGroup(group);
  if (!index.ok()) return index.status();
  return Stage(*index);
}

inline const void* StagedTensors::State::AnyAddress() const {
  for (uint32_t g = 0; g < model.group_count(); ++g) {
    if (model.group_image_bytes(g) == 0) continue;
    const uint32_t count = static_cast<uint32_t>(model.tensors(g).size());
    for (uint32_t t = 0; t < count; ++t) {
      Result<TensorView> view = plan.tensor(g, t);
      if (view.ok() && view->raw() != nullptr) return view->raw();
    }
  }
  return nullptr;
}

inline Status StagedTensors::State::Begin(uint32_t number, void* stream) {
  if (number >= model.group_count()) {
    return Status(Code::kOutOfRange,
                  "the model has " + std::to_string(model.group_count()) +
                      " groups, not " + std::to_string(number) + " and more");
  }
  Group& group = groups[number];
  const std::lock_guard<std::mutex> lock(group.mu);
  Result<const void*> address = plan.Stage(number, stream);
  if (!address.ok()) return address.status();
  Status bound;
  if (group.scopes == 0) {
    bound = internal::Catching([&] {
      const bool made = !group.made || group.address != *address;
      if (made) Make(number, *address);
      if (watcher.begun) watcher.begun(number, group.tensors, made);
      return Status();
    });
  }
  if (!bound.ok()) {
    group.made = false;
    if (watcher.ended) watcher.ended(number);
    (void)plan.Done(number, stream);  // The first failure says more.
    return bound;
  }
  ++group.scopes;
  return Status();
}

inline Status StagedTensors::State::End(uint32_t number, void* stream) {
  Group& group = groups[number];
  const std::lock_guard<std::mutex> lock(group.mu);
  // First, so that nobody finds the tensors when their place is another's.
  if (--group.scopes == 0 && watcher.ended) watcher.ended(number);
  return plan.Done(number, stream);
}

// Tensors of the same bytes share a storage.
inline void StagedTensors::State::Make(uint32_t number, const void* address) {
  Group& group = groups[number];
  group.made = false;
  group.tensors.clear();
  group.by_name.clear();
  std::map<std::pair<uint64_t, uint64_t>, c10::Storage> storages;
  for (const TensorView& view : model.tensors(number)) {
    const uint64_t bytes = view.size_bytes();
    const auto [found, fresh] =
        storages.try_emplace({view.offset_bytes(), bytes});
    if (fresh) {
      const char* data = static_cast<const char*>(address);
      found->second = internal::Borrow(
          bytes == 0 ? nullptr : data + view.offset_bytes(), bytes, device);
    }
    internal::Geometry geometry = internal::Bytes(bytes);  // No type for it.
    for (const internal::TypePair& type : internal::Types()) {
      if (type.hoist != view.dtype()) continue;
      geometry = {type.torch, view.shape(), view.strides(), 0};
    }
    group.by_name.emplace(view.name(), group.tensors.size());
    group.tensors.push_back(internal::View(found->second, geometry));
  }
  group.address = address;
  group.made = true;
}

}  // namespace torch
}  // namespace v0
}  // namespace hoist

#endif  // HOIST_TORCH_STAGED_H_
