// Zero-copy LibTorch tensors: a mixture's experts, or an embedding, of which a
// pass touches a part.
//
//   auto experts = hoist::torch::InPlaceTensors::Open(
//       *session, "/models/moe", {{"layers.0.experts.up"}, ...}, options);
//   auto pass = experts->Begin();           // For each pass:
//   if (!pass.ok()) return Fail(pass.status());
//   experts->Count("layers.0.experts.up", chosen);
//   y = Experts(x, chosen, (*experts)["layers.0.experts.up"]);
//
// Each tensor has one constant address, and consists of pieces. The most
// touched pieces are in device memory (hot), the others in host memory that the
// device reads over the link (cold). Kernels need no change. See
// hoist/c/in_place.h.
//
// Errors:   Status and Result; torch's exceptions are caught and returned,
//           unless a comment says otherwise.
// Threads:  one at a time; any thread may read tensors.
// Streams:  a pass belongs to the current stream at its begin. Reads of the
//           tensors are on that stream, or in order with it; so are the passes
//           of one object. A CUDA graph may capture a pass.
// Writes:   tensors are read-only; see torch/staged.h.
#ifndef HOIST_TORCH_IN_PLACE_H_
#define HOIST_TORCH_IN_PLACE_H_

#include <algorithm>
#include <chrono>
#include <cstdint>
#include <memory>
#include <numeric>
#include <string>
#include <unordered_map>
#include <utility>
#include <vector>

#include "hoist/torch/source.h"
#include "hoist/torch/tensor.h"

namespace hoist {
inline namespace v0 {
namespace torch {

// A tensor of the files, and its units, each touched as a whole: equal parts
// along its first dimension (experts, rows).
struct TouchedInPart {
  std::string name;
  int64_t units = 0;  // 0: as many as that dimension has.
};

// Of InPlaceTensors::Open.
struct InPlaceTensorsOptions {
  // The pieces' name in hoistd; workers with the same name share them. Each set
  // of tensors has its own. Empty: derived from the path.
  std::string name;
  // Of the files' other tensors, in the same model; see model().
  Grouping grouping = Grouping::kBlock;
  uint64_t hot_budget_bytes = 0;  // Of device memory, for hot pieces.
  uint32_t device = 0;
  std::chrono::milliseconds deadline{60'000};  // Loads all pieces.
  Readers readers = Readers::kDefault;
};

// Move-only. Its end stops all moves; its tensors and views keep their bytes.
class InPlaceTensors {
 public:
  class Pass;

  // Opens tensors of a safetensors file, or a folder of them. NotFound: no such
  // tensor. InvalidArgument: the units do not divide the first dimension, or
  // LibTorch has no such type. Unimplemented: hoistd cannot read in place; the
  // message says why. ResourceExhausted: too little in-place memory.
  static Result<InPlaceTensors> Open(Session& session, const std::string& path,
                                     const std::vector<TouchedInPart>& wanted,
                                     const InPlaceTensorsOptions& options = {});

  // NotFound: none has the name.
  Result<at::Tensor> tensor(const std::string& name) const;
  // Throws c10::Error where tensor() fails.
  at::Tensor operator[](const std::string& name) const {
    Result<at::Tensor> found = tensor(name);
    TORCH_CHECK(found.ok(), "hoist: ", found.status().ToString());
    return *found;
  }

  // Begins a pass on the current stream, after a remap of pending pieces. When
  // the Pass ends, it has been launched, and may still run.
  Result<Pass> Begin();
  // Counts units that a pass touches: integers, on any device. The count runs
  // on the tensors' device, and a CUDA graph may record it.
  Status Count(const std::string& name, const at::Tensor& units);

  // See hoist_in_place_advance: nothing may read the tensors meanwhile.
  Status Advance(bool wait = false) { return state_->in_place.Advance(wait); }
  // Sets the hot budget; excess pieces leave the device between passes.
  Status SetBudget(uint64_t hot_budget_bytes) {
    return state_->in_place.SetBudget(hot_budget_bytes);
  }
  // Call it after synchronizing, before results are used.
  Status Check() const { return state_->in_place.Check(); }
  // Hot pieces now, and touches so far.
  hoist_in_place_stats stats() const { return state_->in_place.stats(); }
  // Its groups are the pieces, then the files' other tensors in their groups:
  // for these StagedTensors takes session.DescribeModel(model().name()).
  const Model& model() const { return state_->model; }
  c10::Device device() const { return state_->device; }  // Where they are.

 private:
  struct Entry {
    internal::Geometry geometry;
    uint64_t bytes = 0;
    int64_t units = 0;
    int64_t first = 0;  // Its units' first count.
    at::Tensor tensor;
  };
  // Kept alive by tensors' storages.
  struct State {
    State(Session&& session_in, Model&& model_in, c10::Device device_in,
          at::Tensor counts_in, InPlace&& in_place_in)
        : session(std::move(session_in)),
          model(std::move(model_in)),
          device(device_in),
          counts(std::move(counts_in)),
          in_place(std::move(in_place_in)) {}
    Session session;
    Model model;
    c10::Device device;
    at::Tensor counts;
    InPlace in_place;  // Destroyed before its counts.
  };
  using Entries = std::unordered_map<std::string, Entry>;

  InPlaceTensors(std::shared_ptr<State> state, Entries entries)
      : state_(std::move(state)), entries_(std::move(entries)) {}

  static Status NameByPath(const std::string& path, std::string* name);
  static Result<Entries> Look(const Model& files,
                              const std::vector<TouchedInPart>& wanted);
  static uint64_t PieceBytes(uint64_t unit_bytes);
  static RegisterOptions Pieces(const std::vector<TouchedInPart>& wanted,
                                const Entries& entries,
                                std::vector<InPlaceTensor>* tensors);
  static void AddOthers(const Model& files, const Entries& entries,
                        RegisterOptions* pieces);
  void Show(const std::vector<TouchedInPart>& wanted);

  std::shared_ptr<State> state_;
  Entries entries_;
};

// A pass under launch until its end. Move-only; ends before its InPlaceTensors.
class InPlaceTensors::Pass {
 public:
  // `other` is left without a pass.
  Pass(Pass&& other) noexcept : state_(std::exchange(other.state_, nullptr)) {}
  // Ends this one's own first.
  Pass& operator=(Pass&& other) noexcept {
    if (this != &other) {
      (void)End();
      state_ = std::exchange(other.state_, nullptr);
    }
    return *this;
  }
  ~Pass() { (void)End(); }

  // A second End does nothing.
  Status End() {
    State* state = std::exchange(state_, nullptr);
    return state == nullptr ? Status() : state->in_place.End();
  }

 private:
  friend class InPlaceTensors;
  explicit Pass(State* state) : state_(state) {}

  State* state_;
};

inline Result<InPlaceTensors::Pass> InPlaceTensors::Begin() {
  Status begun = internal::Catching([&] {
    return state_->in_place.Begin(internal::CurrentStream(state_->device));
  });
  if (!begun.ok()) return begun;
  return Pass(state_.get());
}

inline Result<at::Tensor> InPlaceTensors::tensor(
    const std::string& name) const {
  const auto found = entries_.find(name);
  if (found != entries_.end()) return found->second.tensor;
  return Status(Code::kNotFound, "no tensor \"" + name + "\" is in place");
}

inline Status InPlaceTensors::Count(const std::string& name,
                                    const at::Tensor& units) {
  const auto found = entries_.find(name);
  if (found == entries_.end()) return tensor(name).status();
  if (!at::isIntegralType(units.scalar_type(), /*includeBool=*/false)) {
    return Status(Code::kInvalidArgument, "units are whole numbers");
  }
  const Entry& entry = found->second;
  return internal::Catching([&] {
    const c10::InferenceMode mode(false);
    // Invalid unit numbers are counted behind the last.
    const at::Tensor all =
        units.reshape({-1}).to(state_->counts.device(), at::kLong);
    const at::Tensor at = all.masked_fill(all.lt(0), entry.units)
                              .clamp_max(entry.units)
                              .add(entry.first);
    state_->counts.index_add_(
        0, at, at::ones({1}, state_->counts.options()).expand({at.numel()}));
    return Status();
  });
}

// Reads the tensors' metadata in the files.
inline Result<InPlaceTensors::Entries> InPlaceTensors::Look(
    const Model& files, const std::vector<TouchedInPart>& wanted) {
  std::unordered_map<std::string, TensorView> known;
  for (uint32_t g = 0; g < files.group_count(); ++g) {
    for (const TensorView& view : files.tensors(g)) {
      known.emplace(std::string(view.name()), view);
    }
  }
  Entries entries;
  int64_t first = 0;
  for (const TouchedInPart& one : wanted) {
    const std::string quoted = "\"" + one.name + "\"";
    const auto found = known.find(one.name);
    if (found == known.end()) {
      return Status(Code::kNotFound, "the files have no tensor " + quoted);
    }
    const TensorView& view = found->second;
    Entry entry;
    entry.bytes = view.size_bytes();
    entry.first = first;
    bool typed = false;
    for (const internal::TypePair& type : internal::Types()) {
      if (type.hoist != view.dtype()) continue;
      entry.geometry = {type.torch, view.shape(), view.strides(), 0};
      typed = true;
    }
    const int64_t along = view.rank() == 0 ? 0 : view.dim(0);
    entry.units = one.units == 0 ? along : one.units;
    if (!typed || entry.bytes == 0 || entry.units < 1 ||
        entry.units > UINT32_MAX || along % entry.units != 0) {
      return Status(Code::kInvalidArgument,
                    quoted +
                        " cannot be read in place: it is empty, of a type "
                        "that LibTorch lacks, or its first dimension is "
                        "not of " +
                        std::to_string(entry.units) + " units");
    }
    first += entry.units + 1;
    if (!entries.emplace(one.name, std::move(entry)).second) {
      return Status(Code::kInvalidArgument, quoted + " is named twice");
    }
  }
  return entries;
}

inline void InPlaceTensors::AddOthers(const Model& files,
                                      const Entries& entries,
                                      RegisterOptions* pieces) {
  for (uint32_t g = 0; g < files.group_count(); ++g) {
    GroupSpec group;
    group.name = std::string(files.group_name(g));
    for (const TensorView& view : files.tensors(g)) {
      std::string name(view.name());
      if (entries.count(name) == 0) group.tensors.push_back(std::move(name));
    }
    if (!group.tensors.empty()) pieces->groups.push_back(std::move(group));
  }
}

// Whole pages: whole units where few of them fill pages, else about one unit's
// pages.
inline uint64_t InPlaceTensors::PieceBytes(uint64_t unit_bytes) {
  constexpr uint64_t kPage = uint64_t{2} << 20, kMostUnits = 4;
  const uint64_t together = std::lcm(unit_bytes, kPage);
  if (together <= kMostUnits * unit_bytes) return together;
  return std::max<uint64_t>(1, (unit_bytes + kPage / 2) / kPage) * kPage;
}

inline RegisterOptions InPlaceTensors::Pieces(
    const std::vector<TouchedInPart>& wanted, const Entries& entries,
    std::vector<InPlaceTensor>* tensors) {
  RegisterOptions pieces;
  for (const TouchedInPart& one : wanted) {
    const Entry& entry = entries.at(one.name);
    InPlaceTensor tensor;
    tensor.units = static_cast<uint32_t>(entry.units);
    tensor.first_count = static_cast<uint64_t>(entry.first);
    const uint64_t element = c10::elementSize(entry.geometry.dtype);
    const uint64_t step = PieceBytes(entry.bytes / entry.units);
    for (uint64_t at = 0; at < entry.bytes; at += step) {
      const uint64_t bytes = std::min(step, entry.bytes - at);
      const std::string name = one.name + "#" + std::to_string(at / step);
      tensor.groups.push_back(static_cast<uint32_t>(pieces.groups.size()));
      pieces.groups.push_back({name, {name}});
      pieces.joined.push_back({name,
                               {static_cast<int64_t>(bytes / element)},
                               {{one.name, at, bytes}}});
    }
    tensors->push_back(std::move(tensor));
  }
  return pieces;
}

inline void InPlaceTensors::Show(const std::vector<TouchedInPart>& wanted) {
  for (size_t i = 0; i < wanted.size(); ++i) {
    Entry& entry = entries_.at(wanted[i].name);
    entry.tensor =
        internal::View(c10::Storage(c10::make_intrusive<c10::StorageImpl>(
                           c10::StorageImpl::use_byte_size_t(),
                           static_cast<int64_t>(entry.bytes),
                           internal::Keeping(*state_->in_place.Address(i),
                                             state_, state_->device),
                           /*allocator=*/nullptr, /*resizable=*/false)),
                       entry.geometry);
  }
}

// Unless it has one.
inline Status InPlaceTensors::NameByPath(const std::string& path,
                                         std::string* name) {
  if (!name->empty()) return Status();
  // "/" may not be at an end of a model's name.
  const size_t first = path.find_first_not_of('/');
  if (first == std::string::npos) {
    return Status(Code::kInvalidArgument, "`path` is empty");
  }
  *name =
      path.substr(first, path.find_last_not_of('/') - first + 1) + "#in-place";
  return Status();
}

inline Result<InPlaceTensors> InPlaceTensors::Open(
    Session& session, const std::string& path,
    const std::vector<TouchedInPart>& wanted,
    const InPlaceTensorsOptions& options) {
  if (wanted.empty()) {
    return Status(Code::kInvalidArgument, "no tensors to read in place");
  }
  if (Status s = session.HasInPlace(); !s.ok()) return s;
  std::string name = options.name;
  if (Status s = NameByPath(path, &name); !s.ok()) return s;
  // Registered as is first, for its metadata; no weight is read.
  RegisterOptions whole;
  whole.name = name + "#files";
  whole.path = path;
  whole.grouping = options.grouping;
  Result<Model> files = session.RegisterModel(whole);
  if (!files.ok()) return files.status();
  Result<Entries> entries = Look(*files, wanted);
  std::vector<InPlaceTensor> tensors;
  RegisterOptions pieces;
  if (entries.ok()) {
    pieces = Pieces(wanted, *entries, &tensors);
    AddOthers(*files, *entries, &pieces);
  }
  (void)session.Forget(*files);  // Another worker may use it, too.
  if (!entries.ok()) return entries.status();
  pieces.name = name;
  pieces.path = path;
  pieces.readers = options.readers;
  const bool is_new = internal::IsLacking(session, name);
  Result<Model> model = session.RegisterModel(pieces);
  if (!model.ok()) return model.status();

  std::shared_ptr<State> state;
  Status made = internal::Catching([&]() -> Status {
    Result<Session> shared = session.Share();
    if (!shared.ok()) return shared.status();
    Result<c10::Device> device =
        internal::TorchDevice(session, options.device, nullptr);
    if (!device.ok()) return device.status();
    const c10::InferenceMode mode(false);
    int64_t length = 0;
    for (const auto& [ignored, entry] : *entries) length += entry.units + 1;
    at::Tensor counts =
        at::zeros({length}, at::TensorOptions(*device).dtype(at::kInt));
    InPlaceOptions with;
    with.device = options.device;
    with.hot_budget_bytes = options.hot_budget_bytes;
    with.deadline = options.deadline;
    with.counts = static_cast<const uint32_t*>(counts.const_data_ptr());
    with.count_length = static_cast<uint64_t>(length);
    Result<InPlace> in_place = shared->ReadInPlace(*model, tensors, with);
    if (!in_place.ok()) return in_place.status();
    state =
        std::make_shared<State>(std::move(*shared), std::move(*model), *device,
                                std::move(counts), std::move(*in_place));
    return Status();
  });
  if (!made.ok()) {
    internal::EndUse(session, *model, is_new);
    return made;
  }
  InPlaceTensors opened(std::move(state), std::move(*entries));
  opened.Show(wanted);
  return opened;
}

}  // namespace torch
}  // namespace v0
}  // namespace hoist

#endif  // HOIST_TORCH_IN_PLACE_H_
