// The C API's models: registering, publishing, describing.
#include <algorithm>
#include <span>
#include <tuple>
#include <utility>
#include <vector>

#include "client/src/base/patience.h"
#include "client/src/c_api/handles.h"
#include "client/src/model/content.h"
#include "client/src/model/published_image.h"
#include "client/src/session/model_requests.h"
#include "hoist/shared/image_layout.h"

namespace hoist {

Status DescribeTensor(const TensorEntry& tensor, const void* image,
                      hoist_tensor_info* info) {
  hoist_tensor_info out = {};
  out.name = tensor.name.c_str();
  out.dtype = static_cast<int>(tensor.dtype);
  out.rank = static_cast<int>(tensor.shape.size());
  out.shape = tensor.shape.data();
  out.strides = tensor.strides.data();
  out.offset_bytes = tensor.offset_bytes;
  out.size_bytes = tensor.size_bytes;
  if (image != nullptr && tensor.size_bytes > 0) {
    out.data = static_cast<const std::byte*>(image) + tensor.offset_bytes;
  }
  out.block_type = tensor.block_type.c_str();
  return WriteSized(out, info);
}

Status ReadRegister(const hoist_register_options* options,
                    hoist_register_options* given) {
  Status s = ReadSized(options, "hoist_register_options", given);
  if (!s.ok()) return s;
  return Check({{given->name, "name"}, {given->path, "path"}});
}

namespace {

Result<SourceTensor> FromC(const hoist_publish_tensor& in) {
  if (in.name == nullptr) return Missing("a tensor's name");
  if (in.rank < 0 || in.rank > 64) {
    return Status(Code::kInvalidArgument, "tensor \"" + std::string(in.name) +
                                              "\": rank must be 0 to 64");
  }
  if (in.rank > 0 && in.shape == nullptr) return Missing("a tensor's shape");
  SourceTensor out;
  out.entry.name = in.name;
  const std::optional<DType> dtype = DTypeFromNumber(in.dtype);
  if (!dtype.has_value()) {
    return Status(Code::kInvalidArgument,
                  "tensor \"" + out.entry.name + "\" has no known dtype");
  }
  out.entry.dtype = *dtype;
  out.entry.shape.assign(in.shape, in.shape + in.rank);
  if (in.strides != nullptr) {
    out.entry.strides.assign(in.strides, in.strides + in.rank);
  } else {
    auto strides = ContiguousStrides(out.entry.shape);
    if (!strides.has_value()) {
      return Status(Code::kInvalidArgument,
                    "tensor \"" + out.entry.name + "\" is too large");
    }
    out.entry.strides = *std::move(strides);
  }
  out.data = in.data;
  return out;
}

Status Give(const std::shared_ptr<Session>& session, Result<HeldModel> found,
            hoist_model** model) {
  if (!found.ok()) return found.status();
  if (model == nullptr) return Status();
  *model = new hoist_model{.table = std::move(found->table),
                           .instance_id = session->instance_id(),
                           .uses = &session->model_uses(),
                           .held = std::move(found->held),
                           .session = session};
  return Status();
}

Hoist__V1__Tensor TensorOf(const TensorEntry& tensor) {
  Hoist__V1__Tensor message = HOIST__V1__TENSOR__INIT;
  message.name = Text(tensor.name.c_str());
  message.dtype = static_cast<Hoist__V1__DType>(tensor.dtype);
  std::tie(message.n_shape, message.shape) = Items(tensor.shape);
  // On the wire, no strides means contiguous.
  const auto contiguous = ContiguousStrides(tensor.shape);
  if (!contiguous.has_value() || *contiguous != tensor.strides) {
    std::tie(message.n_strides, message.strides) = Items(tensor.strides);
  }
  message.offset_bytes = tensor.offset_bytes;
  message.size_bytes = tensor.size_bytes;
  return message;
}

// Of a group.
Result<std::vector<SourceTensor>> TensorsOf(
    const hoist_publish_options& options) {
  if (options.group == nullptr) return Missing("group's name");
  if (options.tensors == nullptr && options.tensor_count > 0) {
    return Missing("tensors");
  }
  std::vector<SourceTensor> tensors;
  for (size_t i = 0; i < options.tensor_count; ++i) {
    Result<SourceTensor> tensor = FromC(options.tensors[i]);
    if (!tensor.ok()) return tensor.status();
    tensor->on_host =
        options.host_tensors != nullptr && options.host_tensors[i] != 0;
    tensors.push_back(std::move(tensor).value());
  }
  return tensors;
}

Status Publish(const std::shared_ptr<Session>& session,
               const hoist_publish_options& options, hoist_model** model) {
  if (Status s = CheckReaders(options.readers); !s.ok()) return s;
  Result<std::vector<SourceTensor>> tensors = TensorsOf(options);
  if (!tensors.ok()) return tensors.status();
  ReadBytes read;
  if (options.on_device != 0) {
    const DeviceFacts* device = session->FindDevice(options.device);
    if (device == nullptr) {
      return Status(Code::kNotFound,
                    "hoistd has no device " + std::to_string(options.device));
    }
    Result<ReadBytes> made = ReadFrom(*device);
    if (!made.ok()) return made.status();
    read = std::move(made).value();
  }
  Result<PublishedImage> image = BuildImage(options.group, *tensors, read);
  if (!image.ok()) return image.status();
  Repeated<Hoist__V1__Tensor> laid_out;
  for (const TensorEntry& tensor : image->group.tensors) {
    laid_out.Add(TensorOf(tensor));
  }
  Hoist__V1__Group group = HOIST__V1__GROUP__INIT;
  group.name = Text(options.group);
  group.image_bytes = image->group.image_bytes;
  std::tie(group.n_tensors, group.tensors) = laid_out.Items();
  Hoist__V1__PublishRequest request = HOIST__V1__PUBLISH_REQUEST__INIT;
  request.model = Text(options.model);
  request.group = &group;
  request.readers = static_cast<Hoist__V1__Readers>(options.readers);
  request.deadline_ms = options.deadline_ms;
  request.of_session = options.of_session != 0;
  request.group_alone = 1;
  if (options.content != nullptr) {
    request.content = Binary({options.content, HOIST_CONTENT_BYTES});
  }
  const int memfd = image->memfd.get();
  return Give(session,
              session->CallForModel(
                  request.base, std::span(&memfd, 1),
                  std::chrono::milliseconds(
                      options.deadline_ms == 0 ? 60'000 : options.deadline_ms),
                  options.model),
              model);
}

}  // namespace
}  // namespace hoist

hoist::ModelPtr hoist_model::Known() const {
  const hoist::MutexLock lock(mu);
  return described == nullptr ? table : described;
}

hoist::Result<hoist::ModelPtr> hoist_model::Whole() const {
  if (table->whole()) return table;
  hoist::ModelPtr use;  // While it is described.
  {
    const hoist::MutexLock lock(mu);
    if (described != nullptr) return described;
    use = held;
  }
  const std::shared_ptr<hoist::Session> on = session.lock();
  if (on == nullptr || use == nullptr) {
    return hoist::Status(
        hoist::Code::kFailedPrecondition,
        std::string(on == nullptr ? "its session has ended"
                                  : "its session is done with it") +
            ", and never asked for the groups of model \"" +
            table->facts().name + "\" that others published; find it anew");
  }
  auto now = hoist::DescribeHeld(*on, *table);
  if (!now.ok()) return now;
  const hoist::MutexLock lock(mu);
  if (described == nullptr) described = *now;
  return described;
}

hoist::Result<hoist::ModelPtr> hoist_model::With(uint32_t group) const {
  if (table->has(group)) return table;
  auto whole = Whole();
  if (!whole.ok()) return whole;
  if (hoist::Status s = (*whole)->CheckGroup(group); !s.ok()) return s;
  return whole;
}

using hoist::Code;
using hoist::Guarded;
using hoist::Missing;
using hoist::Status;

int hoist_register_model(hoist_session* session,
                         const hoist_register_options* options,
                         hoist_model** model, hoist_error** error) {
  return Guarded(error,
                 {{session, "session"}, {options, "options"}, {model, "model"}},
                 [&]() -> Status {
                   hoist_register_options given = {};
                   Status s = hoist::ReadRegister(options, &given);
                   if (!s.ok()) return s;
                   if (s = session->session->Check(); !s.ok()) return s;
                   const auto& on = session->session;
                   return hoist::Give(on, hoist::Register(*on, given), model);
                 });
}

int hoist_describe_model(hoist_session* session, const char* name,
                         hoist_model** model, hoist_error** error) {
  return Guarded(error,
                 {{session, "session"}, {name, "name"}, {model, "model"}},
                 [&]() -> Status {
                   const auto& on = session->session;
                   return hoist::Give(on, hoist::Describe(*on, name), model);
                 });
}

int hoist_publish_group(hoist_session* session,
                        const hoist_publish_options* options,
                        hoist_model** model, hoist_error** error) {
  return Guarded(
      error, {{session, "session"}, {options, "options"}}, [&]() -> Status {
        hoist_publish_options given = {};
        Status s = hoist::ReadSized(options, "hoist_publish_options", &given);
        if (!s.ok()) return s;
        if (given.model == nullptr) return Missing("model's name");
        if (s = session->session->Check(); !s.ok()) return s;
        return hoist::Publish(session->session, given, model);
      });
}

int hoist_group_content(const hoist_publish_options* options, uint8_t* content,
                        hoist_error** error) {
  return Guarded(
      error, {{options, "options"}, {content, "content"}}, [&]() -> Status {
        hoist_publish_options given = {};
        Status s = hoist::ReadSized(options, "hoist_publish_options", &given);
        if (!s.ok()) return s;
        if (given.on_device != 0) {
          return Status(Code::kInvalidArgument,
                        "a content is computed of tensors in host memory");
        }
        auto tensors = hoist::TensorsOf(given);
        if (!tensors.ok()) return tensors.status();
        auto found = hoist::GroupContent(given.group, *tensors);
        if (found.ok()) std::copy_n(found->data(), found->size(), content);
        return found.status();
      });
}

int hoist_model_content(const uint8_t* groups, size_t group_count,
                        uint8_t* content, hoist_error** error) {
  return Guarded(error, {{groups, "groups"}, {content, "content"}},
                 [&]() -> Status {
                   std::vector<hoist::Sha256Digest> own(group_count);
                   for (hoist::Sha256Digest& one : own) {
                     std::copy_n(groups, one.size(), one.data());
                     groups += one.size();
                   }
                   const auto found = hoist::ModelContent(std::move(own));
                   std::copy_n(found.data(), found.size(), content);
                   return Status();
                 });
}

int hoist_find_content(hoist_session* session, const uint8_t* content,
                       hoist_model** model, hoist_error** error) {
  return Guarded(
      error, {{session, "session"}, {content, "content"}, {model, "model"}},
      [&]() -> Status {
        const auto& on = session->session;
        return hoist::Give(on, hoist::FindByContent(*on, content), model);
      });
}

int hoist_forget_model(hoist_session* session, const hoist_model* model,
                       hoist_error** error) {
  return Guarded(error, [&]() -> Status {
    if (Status s = hoist::CheckBoth(session, model); !s.ok()) return s;
    return session->session->Forget(*model->table);
  });
}

namespace hoist {
namespace {

// The handle's own hold ends last, after the declaration.
int EndUse(hoist_session* session, const hoist_model* model, bool forget,
           hoist_error** error) {
  return Guarded(error, [&]() -> Status {
    if (Status s = CheckBoth(session, model); !s.ok()) return s;
    ModelUses& uses = session->session->model_uses();
    ModelPtr held;
    if (model->uses == &uses) {
      const MutexLock lock(model->mu);
      held = std::move(model->held);
    }
    uses.DoneWith(*model->table, forget);
    held.reset();
    // hoistd ignores what it has not read at the session's end.
    if (forget) (void)session->session->Ping(GiveBackPatience(), nullptr);
    return Status();
  });
}

}  // namespace
}  // namespace hoist

int hoist_done_with_model(hoist_session* session, const hoist_model* model,
                          hoist_error** error) {
  return hoist::EndUse(session, model, /*forget=*/false, error);
}

int hoist_forget_unused_model(hoist_session* session, const hoist_model* model,
                              hoist_error** error) {
  return hoist::EndUse(session, model, /*forget=*/true, error);
}

const char* hoist_dtype_name(int dtype) {
  const auto known = hoist::DTypeFromNumber(dtype);
  // NameOf's views are of literals, which are NUL-terminated.
  return known.has_value() ? hoist::NameOf(*known).data() : "?";
}

int hoist_dtype_bits(int dtype) {
  const auto known = hoist::DTypeFromNumber(dtype);
  return known.has_value() ? hoist::BitsOf(*known) : 0;
}

void hoist_model_free(hoist_model* model) { delete model; }

namespace {

// A NULL handle has the facts of no model.
const hoist::ModelTable::Facts& FactsOf(const hoist_model* model) {
  static const auto* const none = new hoist::ModelTable::Facts{
      .name = "", .owner_uid = UINT32_MAX, .owner_tenant = ""};
  return model == nullptr ? *none : model->table->facts();
}

}  // namespace

uint64_t hoist_model_id(const hoist_model* model) { return FactsOf(model).id; }

const char* hoist_model_name(const hoist_model* model) {
  return FactsOf(model).name.c_str();
}

const uint8_t* hoist_model_fingerprint(const hoist_model* model) {
  if (model == nullptr) return FactsOf(model).fingerprint.data();
  const hoist::ModelTable* from = model->table.get();
  (void)Guarded(nullptr, [&] {
    auto whole = model->Whole();
    if (whole.ok()) from = whole->get();  // The handle keeps it.
    return whole.status();
  });
  return from->facts().fingerprint.data();
}

uint32_t hoist_model_owner(const hoist_model* model) {
  return FactsOf(model).owner_uid;
}

const char* hoist_model_owner_tenant(const hoist_model* model) {
  return FactsOf(model).owner_tenant.c_str();
}

int hoist_model_readers(const hoist_model* model) {
  return FactsOf(model).readers;
}

uint64_t hoist_model_image_bytes(const hoist_model* model) {
  return FactsOf(model).image_bytes;
}

int hoist_model_is_published(const hoist_model* model) {
  return FactsOf(model).published ? 1 : 0;
}

uint32_t hoist_model_group_count(const hoist_model* model) {
  return model == nullptr ? 0 : model->Known()->count();
}

int hoist_model_group(const hoist_model* model, uint32_t group,
                      hoist_group_info* info, hoist_error** error) {
  return Guarded(error, {{model, "model"}, {info, "info"}}, [&]() -> Status {
    auto table = model->With(group);
    if (!table.ok()) return table.status();
    const hoist::GroupEntry& entry = (*table)->group(group);
    hoist_group_info out = {};
    out.name = entry.name.c_str();
    out.image_bytes = entry.image_bytes;
    out.tensor_count = static_cast<uint32_t>(entry.tensors.size());
    if (entry.content.has_value()) out.content = entry.content->data();
    return hoist::WriteSized(out, info);
  });
}

int hoist_model_tensor(const hoist_model* model, uint32_t group,
                       uint32_t tensor, hoist_tensor_info* info,
                       hoist_error** error) {
  return Guarded(error, {{model, "model"}, {info, "info"}}, [&]() -> Status {
    auto table = model->With(group);
    if (!table.ok()) return table.status();
    auto found = (*table)->group(group).Tensor(tensor);
    if (!found.ok()) return found.status();
    return hoist::DescribeTensor(**found, nullptr, info);
  });
}

int hoist_model_find_groups(const hoist_model* model, const char* const* names,
                            size_t count, uint32_t* groups,
                            hoist_error** error) {
  return Guarded(error, {{model, "model"}}, [&]() -> Status {
    for (size_t i = 0; i < count; ++i) {
      if (names == nullptr || names[i] == nullptr) return Missing("names");
      if (groups == nullptr) return Missing("groups");
      auto found = model->table->FindGroup(names[i]);
      if (!found.has_value()) {
        auto whole = model->Whole();
        if (!whole.ok()) return whole.status();
        found = (*whole)->FindGroup(names[i]);
      }
      if (!found.has_value()) {
        return Status(Code::kNotFound, "model \"" + model->table->facts().name +
                                           "\" has no group \"" + names[i] +
                                           "\"");
      }
      groups[i] = *found;
    }
    return count > 0 ? Status() : model->Whole().status();
  });
}

int hoist_model_find_tensor(const hoist_model* model, const char* name,
                            uint32_t* group, uint32_t* tensor,
                            hoist_error** error) {
  return Guarded(error, {{model, "model"}, {name, "name"}}, [&]() -> Status {
    auto whole = model->Whole();
    if (!whole.ok()) return whole.status();
    const auto found = (*whole)->FindTensor(name);
    if (!found.has_value()) {
      return Status(Code::kNotFound, "model \"" + model->table->facts().name +
                                         "\" has no tensor \"" + name + "\"");
    }
    if (group != nullptr) *group = found->group;
    if (tensor != nullptr) *tensor = found->tensor;
    return Status();
  });
}
