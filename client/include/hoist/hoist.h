// hoist for C++: weights that live in hoistd, staged before they are used.
//
//   hoist::Result<hoist::Session> session = hoist::Session::Connect();
//   if (!session.ok()) return Fail(session.status());
//   auto model = session->RegisterModel({"minilm", "/models/minilm"});
//   auto lease = session->Stage(*model, "encoder.layer.0");
//   auto weight = lease->Data<float>("encoder.layer.0.output.dense.weight");
//   if (weight.ok()) Use(*weight);  // Until the lease is released or dropped.
//
// Header-only over the C API (hoist/hoist_c.h), C++17, no exceptions thrown.
//
// Errors:   Status and Result with gRPC's codes; messages name the remedy.
// Threads:  as the C API: thread-safe, except the end of a handle.
// Moves:    a moved-from handle answers kInvalidArgument, and gives the values
//           of an empty one.
// Fork:     in the child, sessions and leases answer kFailedPrecondition.
#ifndef HOIST_HOIST_H_
#define HOIST_HOIST_H_

#include <algorithm>
#include <chrono>
#include <cstddef>
#include <cstdint>
#include <optional>
#include <string>
#include <string_view>
#include <utility>
#include <variant>
#include <vector>

#include "hoist/hoist_arena.h"
#include "hoist/hoist_c.h"
#include "hoist/hoist_in_place.h"
#include "hoist/hoist_options.h"
#include "hoist/hoist_plan.h"
#include "hoist/hoist_types.h"

namespace hoist {
inline namespace v0 {

// A model's description. Stays valid after its session, but for what hoistd was
// not asked for before (Session::Publish). Move-only.
class Model : internal::Handle<hoist_model, hoist_model_free> {
 public:
  explicit Model(hoist_model* handle) : Handle(handle) {}  // Owns it.

  uint64_t id() const { return hoist_model_id(handle_.get()); }
  std::string fingerprint() const {  // Of the weights.
    const auto* bytes = hoist_model_fingerprint(handle_.get());
    return {bytes, bytes + 16};
  }
  std::string_view name() const { return hoist_model_name(handle_.get()); }
  // The owner's uid; UINT32_MAX if a tenant owns it.
  uint32_t owner() const { return hoist_model_owner(handle_.get()); }
  // The owning tenant (hoistd.toml); empty if a uid owns it.
  std::string_view owner_tenant() const {
    return hoist_model_owner_tenant(handle_.get());
  }
  Readers readers() const {
    return static_cast<Readers>(hoist_model_readers(handle_.get()));
  }
  uint64_t image_bytes() const {
    return hoist_model_image_bytes(handle_.get());
  }
  uint32_t group_count() const {
    return hoist_model_group_count(handle_.get());
  }
  Result<uint32_t> FindGroup(const std::string& name) const {
    const char* const text = name.c_str();
    return Take<uint32_t>(hoist_model_find_groups, &text, size_t{1});
  }
  // Empty unless `group` < group_count().
  std::string_view group_name(uint32_t group) const {
    const hoist_group_info info = Group(group);
    return info.name == nullptr ? "" : info.name;
  }
  uint64_t group_image_bytes(uint32_t group) const {  // See group_name.
    return Group(group).image_bytes;
  }
  // Of a published group; see hoist_group_info.
  std::optional<Content> group_content(uint32_t group) const {
    const uint8_t* bytes = Group(group).content;
    if (bytes == nullptr) return std::nullopt;
    Content content;
    std::copy_n(bytes, content.size(), content.begin());
    return content;
  }
  // For Session::FindContent, if all groups are published ones.
  std::optional<Content> content() const {
    std::vector<uint8_t> all;
    for (uint32_t g = 0; g < group_count(); ++g) {
      const uint8_t* bytes = Group(g).content;
      if (bytes == nullptr) return std::nullopt;
      all.insert(all.end(), bytes, bytes + HOIST_CONTENT_BYTES);
    }
    Content content = {};
    hoist_model_content(all.data(), group_count(), content.data(), nullptr);
    return content;
  }
  std::vector<TensorView> tensors(uint32_t group) const {
    std::vector<TensorView> views;
    const uint32_t count = Group(group).tensor_count;
    for (uint32_t i = 0; i < count; ++i) {
      auto info = internal::Sized<hoist_tensor_info>();
      hoist_model_tensor(handle_.get(), group, i, &info, nullptr);
      views.emplace_back(info);
    }
    return views;
  }
  const hoist_model* get() const { return handle_.get(); }  // For the C API.

 private:
  hoist_group_info Group(uint32_t group) const {
    return Filled<hoist_group_info>(hoist_model_group, group);
  }
};

// The right to read a group's image until its release. Move-only; the
// destructor releases. Work that reads the image must have finished by then.
class Lease : internal::Handle<hoist_lease, hoist_lease_free> {
 public:
  explicit Lease(hoist_lease* handle) : Handle(handle) {}  // Owns it.

  // Waits until hoistd has the image back.
  Status Release() { return Call(hoist_lease_release); }
  // Whether the image may be read.
  Status Check() const { return Call(hoist_lease_check); }
  const void* data() const { return hoist_lease_data(handle_.get()); }
  uint64_t image_bytes() const { return hoist_lease_bytes(handle_.get()); }
  uint32_t group() const { return hoist_lease_group(handle_.get()); }
  uint32_t device() const { return hoist_lease_device(handle_.get()); }
  bool was_resident() const {
    return hoist_lease_was_resident(handle_.get()) != 0;
  }
  // NotFound: the group has no such tensor. FailedPrecondition: released.
  Result<TensorView> tensor(const std::string& name) const {
    return TakeTensor(hoist_lease_find_tensor, name.c_str());
  }
  // The group's tensors, in image order; none if the image may not be read.
  std::vector<TensorView> tensors() const {
    std::vector<TensorView> views;
    const uint32_t count = hoist_lease_tensor_count(handle_.get());
    for (uint32_t i = 0; i < count; ++i) {
      auto info = internal::Sized<hoist_tensor_info>();
      if (hoist_lease_tensor(handle_.get(), i, &info, nullptr) != HOIST_OK) {
        return {};
      }
      views.emplace_back(info);
    }
    return views;
  }
  // The named tensor's elements; see TensorView::data.
  template <typename T>
  Result<const T*> Data(const std::string& name) const {
    Result<TensorView> view = tensor(name);
    if (!view.ok()) return view.status();
    return view->template data<T>();
  }
};

// Groups on their way to a device; see hoist_fetch_start. Move-only; the
// destructor cancels it, and releases the loaded groups.
class Fetch : internal::Handle<hoist_fetch, hoist_fetch_free> {
 public:
  explicit Fetch(hoist_fetch* handle) : Handle(handle) {}  // Owns it.

  // Ok: all are there. DeadlineExceeded: not yet. Cancelled. Other errors: a
  // group cannot be loaded.
  Status Wait(std::chrono::milliseconds timeout) const {
    return Call(hoist_fetch_wait, internal::Count(timeout), nullptr);
  }
  // How many groups are loaded.
  size_t there() const {
    size_t count = 0;
    hoist_fetch_wait(handle_.get(), 0, &count, nullptr);
    return count;
  }
  // Readable once Wait would not wait.
  int event_fd() const { return hoist_fetch_event_fd(handle_.get()); }
  // Loaded groups stay.
  void Cancel() { hoist_fetch_cancel(handle_.get()); }
};

class Session;

// A group's bytes in this process's own memory, at a constant address that is
// known before the load; see hoist_c.h. Access before Load, or after Drop,
// faults. Move-only.
class HostImage : internal::Handle<hoist_host_image, hoist_host_image_free> {
 public:
  explicit HostImage(hoist_host_image* handle) : Handle(handle) {}  // Owns.

  // Waits until the bytes are there. A second load does nothing. `deadline`:
  // for space in hoistd's host tier.
  Status Load(std::chrono::milliseconds deadline = std::chrono::seconds(60)) {
    return Call(hoist_host_image_load, internal::Count(deadline));
  }
  // Makes later loads read that group; see hoist_c.h.
  Status Move(Session& session, const Model& model, uint32_t group);
  // Frees the memory, and keeps the address. No thread may be reading.
  void Drop() { hoist_host_image_drop(handle_.get()); }
  bool loaded() const { return hoist_host_image_is_loaded(handle_.get()) != 0; }
  const void* data() const { return hoist_host_image_data(handle_.get()); }
  uint64_t image_bytes() const { return hoist_host_image_bytes(handle_.get()); }
};

struct PublishTensor {  // A tensor to publish.
  std::string name;
  DType dtype = DType::kF32;
  std::vector<int64_t> shape;
  const void* data = nullptr;         // Host memory, or see `on_device`.
  std::vector<int64_t> strides = {};  // In elements; empty: contiguous.
};

struct PublishOptions {  // Of Session::Publish.
  std::string model;
  std::string group;
  std::vector<PublishTensor> tensors;  // Same data and size: stored once.
  Readers readers = Readers::kDefault;
  std::chrono::milliseconds deadline{0};   // To wait for space; 0: 60 s.
  std::optional<uint32_t> on_device = {};  // hoistd's; writes are done.
  // The expected content, else DataLoss; see hoist_publish_options.
  std::optional<Content> content = {};
  bool of_session = false;  // The model ends with the session.
};

namespace internal {

// Calls the C API with its form of the options. InvalidArgument: strides of
// another rank.
template <typename Function>
auto WithGroup(const PublishOptions& options, const Function& call)
    -> decltype(call(nullptr)) {
  std::vector<hoist_publish_tensor> tensors;
  for (const PublishTensor& tensor : options.tensors) {
    if (!tensor.strides.empty() &&
        tensor.strides.size() != tensor.shape.size()) {
      return Status(Code::kInvalidArgument,
                    "tensor \"" + tensor.name +
                        "\": give a stride for each dimension, or none");
    }
    tensors.push_back({tensor.name.c_str(), static_cast<int>(tensor.dtype),
                       static_cast<int>(tensor.shape.size()),
                       tensor.shape.data(),
                       tensor.strides.empty() ? nullptr : tensor.strides.data(),
                       tensor.data});
  }
  auto given = internal::Sized<hoist_publish_options>();
  given.model = options.model.c_str();
  given.group = options.group.c_str();
  given.tensors = tensors.data();
  given.tensor_count = tensors.size();
  given.readers = static_cast<int>(options.readers);
  given.deadline_ms = internal::Count(options.deadline);
  given.on_device = options.on_device.has_value() ? 1 : 0;
  given.device = options.on_device.value_or(0);
  given.of_session = options.of_session ? 1 : 0;
  if (options.content.has_value()) given.content = options.content->data();
  return call(&given);
}

}  // namespace internal

// The content that hoistd finds in such a group; see hoist_group_content.
inline Result<Content> GroupContent(const PublishOptions& options) {
  Content content = {};
  Status found =
      internal::WithGroup(options, [&](const hoist_publish_options* given) {
        return internal::Call(hoist_group_content, given, content.data());
      });
  if (!found.ok()) return found;
  return content;
}
// Of a model of groups with these contents.
inline Content ModelContent(const std::vector<Content>& groups) {
  Content content = {};
  hoist_model_content(groups.empty() ? content.data() : groups.front().data(),
                      groups.size(), content.data(), nullptr);
  return content;
}

struct StageOptions {  // Of Session::Stage and StartFetch.
  uint32_t device = 0;
  std::chrono::milliseconds deadline{0};  // To wait for space; 0: not at all.
};

namespace internal {

// The C API's form of options; points into them.
inline hoist_plan_options InC(const PlanOptions& options) {
  auto given = Sized<hoist_plan_options>();
  given.device = options.device;
  given.budget_bytes = options.budget_bytes;
  given.order = options.order.data();
  given.order_length = options.order.size();
  given.deadline_ms = Count(options.deadline);
  given.stage_deadline_ms = Count(options.stage_deadline);
  given.weight = options.weight;
  given.priority = options.priority;
  given.max_bytes_per_second = options.max_bytes_per_second;
  given.learn = options.learn ? 1 : 0;
  given.gives_way = options.gives_way ? 1 : 0;
  given.blocks = options.blocks.data();
  given.block_count = options.blocks.size();
  return given;
}

}  // namespace internal

// A connection with hoistd. Move-only; its end releases all its leases.
class Session : internal::Handle<hoist_session, hoist_session_free> {
 public:
  static Result<Session> Connect(ConnectOptions options = {}) {
    options = internal::Resolved(std::move(options));
    const hoist_connect_options given = internal::InC(options);
    hoist_session* handle = nullptr;
    Status status = internal::Call(hoist_connect, &given, &handle);
    if (!status.ok()) return status;
    return Session(handle, std::move(options));
  }

  // Why no call can succeed any more, or ok.
  Status Check() const { return Call(hoist_session_check); }
  void Close() { hoist_session_close(handle_.get()); }
  // The same session. It ends with its last handle, or when one is closed.
  Result<Session> Share() const {
    hoist_session* shared = nullptr;
    Status status = Call(hoist_session_share, &shared);
    if (!status.ok()) return status;
    return Session(shared, options_);
  }
  // To connect again, to the hoistd that then listens there.
  const ConnectOptions& options() const { return options_; }

  Result<Model> RegisterModel(const RegisterOptions& options) {
    const internal::Registration given(options);
    return Take<Model, hoist_model*>(hoist_register_model, given.get());
  }

  Result<Model> DescribeModel(const std::string& name) const {
    return Take<Model, hoist_model*>(hoist_describe_model, name.c_str());
  }

  // By content, of any publisher; see hoist_find_content.
  Result<Model> FindContent(const Content& content) const {
    return Take<Model, hoist_model*>(hoist_find_content, content.data());
  }

  // By any of the above.
  Result<Model> Find(const ModelSource& source) {
    if (const auto* name = std::get_if<std::string>(&source)) {
      return DescribeModel(*name);
    }
    if (const auto* files = std::get_if<RegisterOptions>(&source)) {
      return RegisterModel(*files);
    }
    return FindContent(std::get<Content>(source));
  }

  // Drops a model of this user. FailedPrecondition: it is in use.
  Status Forget(const Model& model) {
    return Call(hoist_forget_model, model.get());
  }

  // Adds one group to a published model; returns the resulting model. It has
  // this group, and asks hoistd for the others at the first need; see
  // hoist_publish_group.
  Result<Model> Publish(const PublishOptions& options) {
    return internal::WithGroup(
        options, [&](const hoist_publish_options* given) {
          return Take<Model, hoist_model*>(hoist_publish_group, given);
        });
  }

  // Waits until the group's image is usable on the device.
  Result<Lease> Stage(const Model& model, uint32_t group,
                      const StageOptions& options = {}) {
    return Take<Lease, hoist_lease*>(hoist_stage, model.get(), group,
                                     options.device,
                                     internal::Count(options.deadline));
  }
  // By the group's name.
  Result<Lease> Stage(const Model& model, const std::string& group,
                      const StageOptions& options = {}) {
    Result<uint32_t> index = model.FindGroup(group);
    if (!index.ok()) return index.status();
    return Stage(model, *index, options);
  }

  // Reserves addresses for the group's bytes; HostImage::Load brings them.
  Result<HostImage> ReserveHostImage(const Model& model, uint32_t group) {
    return Take<HostImage, hoist_host_image*>(hoist_host_image_create,
                                              model.get(), group);
  }

  // Loads the groups to the device, in order, asynchronously.
  Result<Fetch> StartFetch(const Model& model,
                           const std::vector<uint32_t>& groups,
                           const StageOptions& options = {}) {
    return Take<Fetch, hoist_fetch*>(
        hoist_fetch_start, model.get(), groups.data(), groups.size(),
        options.device, internal::Count(options.deadline));
  }

  // Queues a prefetch of groups to a tier, in order of first need.
  Status Prefetch(const Model& model, const std::vector<uint32_t>& groups,
                  Tier tier = Tier::kDevice, uint32_t device = 0) {
    return Call(hoist_prefetch, model.get(), groups.data(), groups.size(),
                static_cast<int>(tier), device);
  }
  // Ends the use by this handle. Once the session holds nothing else of the
  // model, it is done with it, and hoistd may forget a published model that no
  // session uses. `model` can still be read. See hoist_done_with_model.
  Status DoneWith(const Model& model) {
    return Call(hoist_done_with_model, model.get());
  }
  // Declares the order of repeated stages. Empty: none, and the session is done
  // with the model, even if handles hold it.
  Status SetOrder(const Model& model, const std::vector<uint32_t>& groups) {
    return Call(hoist_set_order, model.get(), groups.data(), groups.size());
  }

  // ResourceExhausted: the budget is too small, or cannot be promised.
  Result<Plan> SetPlan(const Model& model, const PlanOptions& options = {}) {
    const hoist_plan_options given = internal::InC(options);
    return Take<Plan, hoist_plan*>(hoist_set_plan, model.get(), &given);
  }

  // Unimplemented: this hoistd cannot read in place; the message says why.
  Status HasInPlace() const { return Call(hoist_session_has_in_place); }
  // See hoist_in_place_create.
  Result<InPlace> ReadInPlace(const Model& model,
                              const std::vector<InPlaceTensor>& tensors,
                              const InPlaceOptions& options = {}) {
    std::vector<hoist_in_place_tensor> wanted;
    for (const InPlaceTensor& tensor : tensors) {
      auto one = internal::Sized<hoist_in_place_tensor>();
      one.groups = tensor.groups.data();
      one.group_count = tensor.groups.size();
      one.units = tensor.units;
      one.first_count = tensor.first_count;
      wanted.push_back(one);
    }
    auto given = internal::Sized<hoist_in_place_options>();
    given.device = options.device;
    given.hot_budget_bytes = options.hot_budget_bytes;
    given.deadline_ms = internal::Count(options.deadline);
    given.counts = options.counts;
    given.count_length = options.count_length;
    return Take<InPlace, hoist_in_place*>(hoist_in_place_create, model.get(),
                                          wanted.data(), wanted.size(), &given);
  }

  std::vector<hoist_device_info> devices() const {
    std::vector<hoist_device_info> all;
    for (size_t i = 0; i < hoist_session_device_count(handle_.get()); ++i) {
      auto info = internal::Sized<hoist_device_info>();
      hoist_session_device(handle_.get(), i, &info, nullptr);
      all.push_back(info);
    }
    return all;
  }
  hoist_session* get() const { return handle_.get(); }  // For the C API.

 private:
  Session(hoist_session* handle, ConnectOptions options)
      : Handle(handle), options_(std::move(options)) {}

  ConnectOptions options_;
};

inline Status HostImage::Move(Session& session, const Model& model,
                              uint32_t group) {
  return Call(hoist_host_image_move, session.get(), model.get(), group);
}

}  // namespace v0
}  // namespace hoist

#endif  // HOIST_HOIST_H_
