// The C API's models: registering, publishing, describing.
#include <deque>
#include <span>
#include <tuple>
#include <utility>
#include <vector>

#include "client/src/c_api/handles.h"
#include "client/src/model/model_files.h"
#include "client/src/model/published_image.h"

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
  return WriteSized(out, info);
}

namespace {

Status CheckReaders(int readers) {
  if (readers >= HOIST_READERS_DEFAULT && readers <= HOIST_READERS_EVERYONE) {
    return Status();
  }
  return Status(Code::kInvalidArgument, "readers is none of HOIST_READERS_*");
}

// A RegisterModelRequest and the data it points to, other than the caller's.
struct Registration {
  Hoist__V1__RegisterModelRequest request =
      HOIST__V1__REGISTER_MODEL_REQUEST__INIT;
  Hoist__V1__Grouping grouping = HOIST__V1__GROUPING__INIT;
  Repeated<Hoist__V1__Grouping__Named> groups;
  Repeated<Hoist__V1__JoinedTensor> joined;
  std::deque<Repeated<Hoist__V1__JoinedTensor__Part>> parts;
  Repeated<Hoist__V1__RegisterModelRequest__File> shards;
  Hoist__V1__RegisterModelRequest__File index =
      HOIST__V1__REGISTER_MODEL_REQUEST__FILE__INIT;
  std::vector<int> fds;
};

Status FillGrouping(const hoist_register_options& options,
                    Registration* registration) {
  const int rule =
      options.grouping == 0 ? int{HOIST_GROUPS_BLOCK} : options.grouping;
  if (rule < HOIST_GROUPS_BLOCK || rule > HOIST_GROUPS_EXPLICIT) {
    return Status(Code::kInvalidArgument, "grouping is none of HOIST_GROUPS_*");
  }
  if ((rule == HOIST_GROUPS_EXPLICIT) != (options.group_count > 0)) {
    return Status(Code::kInvalidArgument,
                  "groups go with HOIST_GROUPS_EXPLICIT, and only with it");
  }
  if (options.group_count > 0 && options.groups == nullptr) {
    return Missing("groups");
  }
  for (const hoist_group_spec& spec :
       std::span(options.groups, options.group_count)) {
    if (spec.name == nullptr) return Missing("a group's name");
    if (spec.tensors == nullptr && spec.tensor_count > 0) {
      return Missing("a group's tensors");
    }
    for (const char* tensor : std::span(spec.tensors, spec.tensor_count)) {
      if (tensor == nullptr) return Missing("a tensor's name");
    }
    Hoist__V1__Grouping__Named group = HOIST__V1__GROUPING__NAMED__INIT;
    group.name = Text(spec.name);
    group.n_tensors = spec.tensor_count;
    group.tensors = const_cast<char**>(spec.tensors);
    registration->groups.Add(group);
  }
  Hoist__V1__Grouping& grouping = registration->grouping;
  grouping.rule = static_cast<Hoist__V1__Grouping__Rule>(rule);
  std::tie(grouping.n_groups, grouping.groups) = registration->groups.Items();
  registration->request.grouping = &grouping;
  return Status();
}

Status FillJoined(const hoist_register_options& options,
                  Registration* registration) {
  if (options.joined == nullptr && options.joined_count > 0) {
    return Missing("joined");
  }
  for (const hoist_joined_tensor& in :
       std::span(options.joined, options.joined_count)) {
    if (in.name == nullptr) return Missing("a joined tensor's name");
    if (in.rank < 0 || in.rank > 64) {
      return Status(Code::kInvalidArgument, "joined tensor \"" +
                                                std::string(in.name) +
                                                "\": rank must be 0 to 64");
    }
    if (in.shape == nullptr && in.rank > 0) {
      return Missing("a joined tensor's shape");
    }
    if (in.parts == nullptr && in.part_count > 0) {
      return Missing("a joined tensor's parts");
    }
    auto& parts = registration->parts.emplace_back();
    for (const hoist_joined_part& from : std::span(in.parts, in.part_count)) {
      if (from.tensor == nullptr) return Missing("a part's tensor");
      Hoist__V1__JoinedTensor__Part part = HOIST__V1__JOINED_TENSOR__PART__INIT;
      part.tensor = Text(from.tensor);
      part.offset_bytes = from.offset_bytes;
      part.size_bytes = from.size_bytes;
      part.count = from.count;
      part.stride_bytes = from.stride_bytes;
      parts.Add(part);
    }
    Hoist__V1__JoinedTensor joined = HOIST__V1__JOINED_TENSOR__INIT;
    joined.name = Text(in.name);
    std::tie(joined.n_shape, joined.shape) =
        Items(std::span(in.shape, static_cast<size_t>(in.rank)));
    std::tie(joined.n_parts, joined.parts) = parts.Items();
    registration->joined.Add(joined);
  }
  Hoist__V1__RegisterModelRequest& request = registration->request;
  std::tie(request.n_joined, request.joined) = registration->joined.Items();
  return Status();
}

// Numbers the descriptors in the order of attachment.
Hoist__V1__RegisterModelRequest__File Attach(const OpenFile& file,
                                             std::vector<int>* fds) {
  Hoist__V1__RegisterModelRequest__File message =
      HOIST__V1__REGISTER_MODEL_REQUEST__FILE__INIT;
  message.name = Text(file.name.c_str());
  message.fd_index = static_cast<uint32_t>(fds->size());
  fds->push_back(file.fd.get());
  return message;
}

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

Status Give(Session& session, Result<HeldModel> found, hoist_model** model) {
  if (!found.ok()) return found.status();
  if (model == nullptr) return Status();
  *model = new hoist_model{.table = std::move(found->table),
                           .instance_id = session.instance_id(),
                           .uses = &session.model_uses(),
                           .held = std::move(found->held)};
  return Status();
}

Status Register(Session& session, const hoist_register_options& options,
                hoist_model** model) {
  if (Status s = CheckReaders(options.readers); !s.ok()) return s;
  Registration made;
  if (Status s = FillGrouping(options, &made); !s.ok()) return s;
  if (Status s = FillJoined(options, &made); !s.ok()) return s;
  Result<ModelFiles> files = OpenModelFiles(options.path);
  if (!files.ok()) return files.status();
  for (const OpenFile& shard : files->shards) {
    made.shards.Add(Attach(shard, &made.fds));
  }
  Hoist__V1__RegisterModelRequest& request = made.request;
  request.name = Text(options.name);
  request.readers = static_cast<Hoist__V1__Readers>(options.readers);
  std::tie(request.n_shards, request.shards) = made.shards.Items();
  for (const OpenFile& index : files->index) {
    made.index = Attach(index, &made.fds);
    request.index = &made.index;
  }
  return Give(session, session.CallForModel(request.base, made.fds), model);
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

Status Publish(Session& session, const hoist_publish_options& options,
               hoist_model** model) {
  if (Status s = CheckReaders(options.readers); !s.ok()) return s;
  std::vector<SourceTensor> tensors;
  for (size_t i = 0; i < options.tensor_count; ++i) {
    Result<SourceTensor> tensor = FromC(options.tensors[i]);
    if (!tensor.ok()) return tensor.status();
    tensors.push_back(std::move(tensor).value());
  }
  ReadBytes read;
  if (options.on_device != 0) {
    const DeviceFacts* device = session.FindDevice(options.device);
    if (device == nullptr) {
      return Status(Code::kNotFound,
                    "hoistd has no device " + std::to_string(options.device));
    }
    Result<ReadBytes> made = ReadFrom(*device);
    if (!made.ok()) return made.status();
    read = std::move(made).value();
  }
  Result<PublishedImage> image = BuildImage(options.group, tensors, read);
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
  if (options.content != nullptr) {
    request.content = Binary({options.content, HOIST_CONTENT_BYTES});
  }
  const int memfd = image->memfd.get();
  return Give(
      session,
      session.CallForModel(request.base, std::span(&memfd, 1),
                           std::chrono::milliseconds(options.deadline_ms),
                           options.model),
      model);
}

}  // namespace
}  // namespace hoist

using hoist::Code;
using hoist::Guarded;
using hoist::Missing;
using hoist::Status;

int hoist_register_model(hoist_session* session,
                         const hoist_register_options* options,
                         hoist_model** model, hoist_error** error) {
  return Guarded(
      error, {{session, "session"}, {options, "options"}, {model, "model"}},
      [&]() -> Status {
        hoist_register_options given = {};
        Status s = hoist::ReadSized(options, "hoist_register_options", &given);
        if (!s.ok()) return s;
        if (given.name == nullptr) return Missing("name");
        if (given.path == nullptr) return Missing("path");
        if (s = session->session->Check(); !s.ok()) return s;
        return hoist::Register(*session->session, given, model);
      });
}

int hoist_describe_model(hoist_session* session, const char* name,
                         hoist_model** model, hoist_error** error) {
  return Guarded(error,
                 {{session, "session"}, {name, "name"}, {model, "model"}},
                 [&]() -> Status {
                   Hoist__V1__DescribeModelRequest request =
                       HOIST__V1__DESCRIBE_MODEL_REQUEST__INIT;
                   request.name = hoist::Text(name);
                   hoist::Session& on = *session->session;
                   return hoist::Give(on, on.CallForModel(request.base), model);
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
        if (given.group == nullptr) return Missing("group's name");
        if (given.tensors == nullptr && given.tensor_count > 0) {
          return Missing("tensors");
        }
        if (s = session->session->Check(); !s.ok()) return s;
        return hoist::Publish(*session->session, given, model);
      });
}

int hoist_find_content(hoist_session* session, const uint8_t* content,
                       hoist_model** model, hoist_error** error) {
  return Guarded(
      error, {{session, "session"}, {content, "content"}, {model, "model"}},
      [&]() -> Status {
        Hoist__V1__FindContentRequest request =
            HOIST__V1__FIND_CONTENT_REQUEST__INIT;
        request.content = hoist::Binary({content, HOIST_CONTENT_BYTES});
        hoist::Session& on = *session->session;
        return hoist::Give(on, on.CallForModel(request.base), model);
      });
}

int hoist_forget_model(hoist_session* session, const hoist_model* model,
                       hoist_error** error) {
  return Guarded(error, [&]() -> Status {
    if (Status s = hoist::CheckBoth(session, model); !s.ok()) return s;
    return session->session->Forget(*model->table);
  });
}

// The handle's own hold ends last, after the declaration.
int hoist_done_with_model(hoist_session* session, const hoist_model* model,
                          hoist_error** error) {
  return Guarded(error, [&]() -> Status {
    if (Status s = hoist::CheckBoth(session, model); !s.ok()) return s;
    hoist::ModelUses& uses = session->session->model_uses();
    hoist::ModelPtr held;
    if (model->uses == &uses) {
      const hoist::MutexLock lock(model->mu);
      held = std::move(model->held);
    }
    uses.DoneWith(*model->table);
    return Status();
  });
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
  return FactsOf(model).fingerprint.data();
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
  return model == nullptr
             ? 0
             : static_cast<uint32_t>(model->table->groups().size());
}

int hoist_model_group(const hoist_model* model, uint32_t group,
                      hoist_group_info* info, hoist_error** error) {
  return Guarded(error, {{model, "model"}, {info, "info"}}, [&]() -> Status {
    const auto& groups = model->table->groups();
    if (group >= groups.size()) {
      return Status(Code::kOutOfRange,
                    "model \"" + model->table->facts().name + "\" has " +
                        std::to_string(groups.size()) + " groups");
    }
    hoist_group_info out = {};
    out.name = groups[group].name.c_str();
    out.image_bytes = groups[group].image_bytes;
    out.tensor_count = static_cast<uint32_t>(groups[group].tensors.size());
    if (groups[group].content.has_value()) {
      out.content = groups[group].content->data();
    }
    return hoist::WriteSized(out, info);
  });
}

int hoist_model_tensor(const hoist_model* model, uint32_t group,
                       uint32_t tensor, hoist_tensor_info* info,
                       hoist_error** error) {
  return Guarded(error, {{model, "model"}, {info, "info"}}, [&]() -> Status {
    const auto& groups = model->table->groups();
    if (group >= groups.size() || tensor >= groups[group].tensors.size()) {
      return Status(Code::kOutOfRange, "model \"" + model->table->facts().name +
                                           "\" has no such group or tensor");
    }
    return hoist::DescribeTensor(groups[group].tensors[tensor], nullptr, info);
  });
}

int hoist_model_find_group(const hoist_model* model, const char* name,
                           uint32_t* group, hoist_error** error) {
  return Guarded(error, {{model, "model"}, {name, "name"}, {group, "group"}},
                 [&]() -> Status {
                   const auto found = model->table->FindGroup(name);
                   if (!found.has_value()) {
                     return Status(Code::kNotFound,
                                   "model \"" + model->table->facts().name +
                                       "\" has no group \"" + name + "\"");
                   }
                   *group = *found;
                   return Status();
                 });
}

int hoist_model_find_tensor(const hoist_model* model, const char* name,
                            uint32_t* group, uint32_t* tensor,
                            hoist_error** error) {
  return Guarded(error, {{model, "model"}, {name, "name"}}, [&]() -> Status {
    const auto found = model->table->FindTensor(name);
    if (!found.has_value()) {
      return Status(Code::kNotFound, "model \"" + model->table->facts().name +
                                         "\" has no tensor \"" + name + "\"");
    }
    if (group != nullptr) *group = found->group;
    if (tensor != nullptr) *tensor = found->tensor;
    return Status();
  });
}
