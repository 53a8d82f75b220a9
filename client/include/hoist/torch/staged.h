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
//           and returned, unless a comment says otherwise.
// Device:   a CUDA device needs a LibTorch with CUDA; an emulated device's
//           weights are CPU tensors.
// Streams:  a scope belongs to the current stream at its begin.
// Views:    while a group is staged, its tensors and their views show its bytes
//           at their current place. Otherwise they have none: torch's functions
//           throw a c10::Error that names it (LibTorch before 2.12: they read
//           address 0). Data pointers from an earlier scope are void.
// Writes:   weights are read-only. A write through one faults: SIGSEGV on an
//           emulated device, an illegal memory access on a GPU.
#ifndef HOIST_TORCH_STAGED_H_
#define HOIST_TORCH_STAGED_H_

#include <algorithm>
#include <atomic>
#include <chrono>
#include <cstdint>
#include <functional>
#include <map>
#include <memory>
#include <mutex>
#include <string>
#include <unordered_map>
#include <utility>
#include <vector>

#include "hoist/hoist_attachment.h"
#include "hoist/torch/tensor.h"

namespace hoist {
inline namespace v0 {
namespace torch {
namespace internal {

// Where a published model is found again, or one of files that are not known.
inline ModelSource SourceOf(const Model& model) {
  if (const auto content = model.content(); content.has_value()) {
    return *content;
  }
  return std::string(model.name());
}

}  // namespace internal

// An attachment's groups as tensors, built once. A group has the same tensors
// in every stage, at the same addresses until the plan is made anew: by EndPass
// (a learned order), SetBudget, SetOrder, or after hoistd's end by the next
// Stage (hoist_attachment.h).
//
// Threads:  Stage and its scopes are thread-safe. During EndPass, SetBudget and
//           SetOrder nothing may be staged. Nothing bound may be in use without
//           a scope during those, and during a Stage after hoistd's end.
class StagedTensors {
 public:
  class Scope;

  // `options` as for Session::SetPlan, but only EndPass learns an order, since
  // addresses are kept. ResourceExhausted: the budget is too small; the message
  // says how much would be enough. If it fails, the caller keeps `model`. It
  // keeps the session alive. `source`: where the model is found again after
  // hoistd's end. Its end ends the session's use of the model.
  static Result<StagedTensors> Create(Session& session, Model&& model,
                                      const PlanOptions& options,
                                      const ModelSource& source) {
    AttachmentOptions given;
    given.source = source;
    given.plan = options;
    given.plan.learn = options.learn || options.order.empty();
    given.renew_deadline = options.stage_deadline;
    Result<Attachment> plan = Attachment::Create(given, session, model);
    if (!plan.ok()) return plan.status();
    std::unique_ptr<State> state;
    Status made = internal::Catching([&] {
      Result<c10::Device> device = internal::TorchDevice(
          session, options.device, AnyAddress(model, *plan));
      if (!device.ok()) return device.status();
      state = std::make_unique<State>(std::move(model), std::move(*plan),
                                      *device, options.gives_way);
      return Status();
    });
    if (!made.ok()) return made;
    return StagedTensors(std::move(state));
  }

  // Found again by its content, or by its name if it was read from files.
  static Result<StagedTensors> Create(Session& session, Model&& model,
                                      const PlanOptions& options = {}) {
    const ModelSource source = internal::SourceOf(model);
    return Create(session, std::move(model), options, source);
  }

  // Makes the group's tensors usable by later work on the current stream, until
  // the scope ends. Groups that share a place cannot be staged together: for
  // threads that share the plan, it waits up to `turn_deadline`
  // (DeadlineExceeded). 0: FailedPrecondition, with the budget that would be
  // enough.
  Result<Scope> Stage(uint32_t group,
                      std::chrono::milliseconds turn_deadline = {});
  // By the group's name.
  Result<Scope> Stage(const std::string& group,
                      std::chrono::milliseconds turn_deadline = {});

  // Whether the group's tensors are usable without a scope: it is resident, and
  // was staged. They stay until the plan is remade. Never under a plan that
  // gives way.
  bool bound(uint32_t group) const;

  // As Attachment's. Nothing is bound after a remake of the plan.
  Status EndPass() { return Anew(state_->plan.EndPass().status()); }
  // See Attachment::SetBudget.
  Status SetBudget(uint64_t bytes) {
    return Anew(state_->plan.SetBudget(bytes));
  }
  // See Attachment::SetOrder.
  Status SetOrder(const std::vector<uint32_t>& groups) {
    return Anew(state_->plan.SetOrder(groups));
  }
  // Call it after synchronizing, before results are used.
  Status Check() const { return state_->plan.Check(); }

  const Model& model() const { return state_->model; }     // As first found.
  const Attachment& plan() const { return state_->plan; }  // Between passes.
  c10::Device device() const { return state_->device; }    // Where they are.

  // For Attach: called after a group's tensors get its bytes, and before they
  // lose them, under the group's lock. Nothing is staged.
  struct Watcher {
    std::function<void(uint32_t group, const std::vector<at::Tensor>& tensors)>
        begun;
    std::function<void(uint32_t group)> ended;
  };
  // Nothing is bound then.
  void Watch(Watcher watcher) {
    state_->Unbind(0);
    state_->watcher = std::move(watcher);
  }
  // Ends calls to the watcher.
  void Forget() { state_->watcher = {}; }

 private:
  struct Group {
    std::mutex mu;
    uint32_t scopes = 0;
    bool shown = false;
    uint64_t generation = 0;  // Of the plan that it was shown of.
    bool resident = false;    // Shown as long as the plan stands.
    bool made = false;        // What follows; of tensors, in image order.
    std::vector<at::Tensor> tensors;
    std::vector<uint64_t> offsets;  // In the image, in bytes; by generation.
    std::vector<std::string> idle;  // Their errors while idle.
    std::unordered_map<std::string, uint32_t> by_name;
  };
  struct State {
    State(Model m, Attachment p, c10::Device d, bool gives)
        : model(std::move(m)),
          plan(std::move(p)),
          gives_way(gives),
          device(d),
          groups(std::make_unique<Group[]>(model.group_count())) {}
    ~State() { Unbind(0); }

    Status Begin(uint32_t group, hoist_stream stream,
                 std::chrono::milliseconds turn_deadline);
    Status End(uint32_t group, hoist_stream stream);
    void Make(uint32_t group);
    Status Show(uint32_t group, const void* address, uint64_t generation);
    void Hide(uint32_t group);
    // The plan's generation. Unbinds what older ones show.
    uint64_t Refresh();
    // All groups without a scope, except those shown of this generation.
    void Unbind(uint64_t but);

    Model model;
    mutable Attachment plan;
    const bool gives_way;
    const c10::Device device;
    std::atomic<uint64_t> generation{0};  // Older ones are unbound.
    std::unique_ptr<Group[]> groups;
    Watcher watcher;
  };

  explicit StagedTensors(std::unique_ptr<State> state)
      : state_(std::move(state)) {}

  static const void* AnyAddress(const Model& model, const Attachment& plan);

  Status Anew(Status made) {
    (void)state_->Refresh();
    return made;
  }

  std::unique_ptr<State> state_;
};

// The right to use a group's tensors; ends with the scope, and before its
// StagedTensors does. Move-only. Tensors and their views must not be used
// afterwards.
class StagedTensors::Scope {
 public:
  // `other` is left without a scope.
  Scope(Scope&& other) noexcept
      : state_(std::exchange(other.state_, nullptr)),
        group_(other.group_),
        stream_(other.stream_) {}
  // Ends this one's own first.
  Scope& operator=(Scope&& other) noexcept {
    if (this != &other) {
      (void)End();
      state_ = std::exchange(other.state_, nullptr);
      group_ = other.group_;
      stream_ = other.stream_;
    }
    return *this;
  }
  // The plan's next call reports End's error, too.
  ~Scope() { (void)End(); }

  // Earlier work on the stream is the last to read the tensors. A second End
  // does nothing.
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
  // The group's tensors, in image order; none once ended.
  std::vector<at::Tensor> tensors() const {
    if (state_ == nullptr) return {};
    return state_->groups[group_].tensors;
  }
  // Whether the tensor shows bytes that end with the scope.
  bool lends(const at::Tensor& tensor) const {
    if (state_ == nullptr || !tensor.defined() || !tensor.has_storage() ||
        !internal::IsLent(tensor.storage())) {
      return false;
    }
    const Group& group = state_->groups[group_];
    return !group.resident &&
           std::any_of(group.tensors.begin(), group.tensors.end(),
                       [&](const at::Tensor& lent) {
                         return lent.is_alias_of(tensor);
                       });
  }
  uint32_t group() const { return group_; }  // The staged one.

 private:
  friend class StagedTensors;
  Scope(State* state, uint32_t group, hoist_stream stream)
      : state_(state), group_(group), stream_(stream) {}

  State* state_;
  uint32_t group_;
  hoist_stream stream_;
};

inline Result<StagedTensors::Scope> StagedTensors::Stage(
    uint32_t group, std::chrono::milliseconds turn_deadline) {
  hoist_stream stream = nullptr;
  Status begun = internal::Catching([&] {
    stream = internal::CurrentStream(state_->device);
    return state_->Begin(group, stream, turn_deadline);
  });
  if (!begun.ok()) return begun;
  return Scope(state_.get(), group, stream);
}

inline Result<StagedTensors::Scope> StagedTensors::Stage(
    const std::string& group, std::chrono::milliseconds turn_deadline) {
  Result<uint32_t> index = state_->model.FindGroup(group);
  if (!index.ok()) return index.status();
  return Stage(*index, turn_deadline);
}

inline const void* StagedTensors::AnyAddress(const Model& model,
                                             const Attachment& plan) {
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

inline Status StagedTensors::State::Begin(
    uint32_t number, hoist_stream stream,
    std::chrono::milliseconds turn_deadline) {
  if (number >= model.group_count()) {
    return Status(Code::kOutOfRange,
                  "the model has " + std::to_string(model.group_count()) +
                      " groups, not " + std::to_string(number) + " and more");
  }
  Result<const void*> address = plan.Stage(number, stream, turn_deadline);
  const uint64_t now = Refresh();  // It stays so while a group is staged.
  if (!address.ok()) return address.status();
  // Only now: a waiter must not block the end of another scope.
  Group& group = groups[number];
  const std::lock_guard<std::mutex> lock(group.mu);
  Status shown;
  if (group.shown && group.generation != now) Hide(number);
  if (!group.shown) {
    shown = internal::Catching([&] { return Show(number, *address, now); });
  }
  if (!shown.ok()) {
    Hide(number);
    (void)plan.Done(number, stream);  // The first failure says more.
    return shown;
  }
  ++group.scopes;
  return Status();
}

inline Status StagedTensors::State::End(uint32_t number, hoist_stream stream) {
  Group& group = groups[number];
  {
    // First: no thread may find the tensors when their place is another's.
    const std::lock_guard<std::mutex> lock(group.mu);
    if (--group.scopes == 0 && !group.resident) Hide(number);
  }
  return plan.Done(number, stream);
}

inline Status StagedTensors::State::Show(uint32_t number, const void* address,
                                         uint64_t now) {
  Group& group = groups[number];
  group.shown = true;
  if (!group.made) Make(number);
  if (group.generation != now) {
    for (uint32_t i = 0; i < group.offsets.size(); ++i) {
      Result<TensorView> view = plan.tensor(number, i);
      if (!view.ok()) return view.status();
      group.offsets[i] = view->offset_bytes();
    }
    group.generation = now;
  }
  group.resident = !gives_way && plan.kind(number) == Planned::kResident;
  const char* image = static_cast<const char*>(address);
  for (size_t i = 0; i < group.tensors.size(); ++i) {
    const c10::Storage& storage = group.tensors[i].storage();
    const void* data =
        storage.nbytes() == 0 ? nullptr : image + group.offsets[i];
    internal::Show(storage, internal::Lent(data, device));
  }
  if (watcher.begun) watcher.begun(number, group.tensors);
  return Status();
}

inline void StagedTensors::State::Hide(uint32_t number) {
  Group& group = groups[number];
  if (!std::exchange(group.shown, false)) return;
  if (watcher.ended) watcher.ended(number);
  for (size_t i = 0; i < group.tensors.size(); ++i) {
    internal::Hide(group.tensors[i].storage(), group.idle[i]);
  }
}

inline uint64_t StagedTensors::State::Refresh() {
  const uint64_t now = plan.Describe().generation;
  uint64_t before = generation.load();  // It may be newer by now.
  while (before < now && !generation.compare_exchange_weak(before, now)) {
  }
  if (before < now) Unbind(now);
  return now;
}

inline void StagedTensors::State::Unbind(uint64_t but) {
  for (uint32_t g = 0; g < model.group_count(); ++g) {
    const std::lock_guard<std::mutex> lock(groups[g].mu);
    if (groups[g].scopes == 0 && groups[g].generation != but) Hide(g);
  }
}

inline bool StagedTensors::bound(uint32_t group) const {
  if (group >= state_->model.group_count()) return false;
  Group& one = state_->groups[group];
  const std::lock_guard<std::mutex> lock(one.mu);
  return one.shown && one.resident &&
         one.generation == state_->plan.Describe().generation;
}

// Tensors of the same bytes share a storage.
inline void StagedTensors::State::Make(uint32_t number) {
  Group& group = groups[number];
  const std::string its_group(model.group_name(number));
  std::map<std::pair<uint64_t, uint64_t>, c10::Storage> storages;
  for (const TensorView& view : model.tensors(number)) {
    const uint64_t bytes = view.size_bytes();
    const auto [found, fresh] =
        storages.try_emplace({view.offset_bytes(), bytes});
    if (fresh) found->second = internal::Borrow(bytes, device);
    internal::Geometry geometry = internal::Bytes(bytes);  // No type for it.
    for (const internal::TypePair& type : internal::Types()) {
      if (type.hoist != view.dtype()) continue;
      geometry = {type.torch, view.shape(), view.strides(), 0};
    }
    const std::string name(view.name());
    group.by_name.emplace(name, group.tensors.size());
    group.tensors.push_back(internal::View(found->second, geometry));
    group.offsets.push_back(0);
    group.idle.push_back(
        "hoist: a view of \"" + name + "\" is used while its group \"" +
        its_group +
        "\" is not staged; use it in a scope of that group, or keep a clone() "
        "of it");
  }
  group.made = true;
}

}  // namespace torch
}  // namespace v0
}  // namespace hoist

#endif  // HOIST_TORCH_STAGED_H_
