// The C API's models: registering, publishing, describing.
#include <utility>
#include <vector>

#include "client/src/c_handles.h"
#include "client/src/model_files.h"
#include "client/src/published_image.h"

namespace hoist {

Status DescribeTensor(const TensorEntry& tensor, const void* data,
                      hoist_tensor_info* info) {
  hoist_tensor_info out = {};
  out.name = tensor.name.c_str();
  out.dtype = static_cast<int>(tensor.dtype);
  out.rank = static_cast<int>(tensor.shape.size());
  out.shape = tensor.shape.data();
  out.strides = tensor.strides.data();
  out.offset_bytes = tensor.offset_bytes;
  out.size_bytes = tensor.size_bytes;
  out.data = data;
  return WriteSized(out, info);
}

namespace {

Status CheckReaders(int readers) {
  if (readers >= HOIST_READERS_DEFAULT && readers <= HOIST_READERS_EVERYONE) {
    return Status();
  }
  return Status(Code::kInvalidArgument, "readers is none of HOIST_READERS_*");
}

Status FillGrouping(const hoist_register_options& options,
                    RegisterRequest* request) {
  request->rule =
      options.grouping == 0 ? int{HOIST_GROUPS_BLOCK} : options.grouping;
  if (request->rule < HOIST_GROUPS_BLOCK ||
      request->rule > HOIST_GROUPS_EXPLICIT) {
    return Status(Code::kInvalidArgument, "grouping is none of HOIST_GROUPS_*");
  }
  if ((request->rule == HOIST_GROUPS_EXPLICIT) != (options.group_count > 0)) {
    return Status(Code::kInvalidArgument,
                  "groups go with HOIST_GROUPS_EXPLICIT, and only with it");
  }
  if (options.group_count > 0 && options.groups == nullptr) {
    return Missing("groups");
  }
  for (size_t g = 0; g < options.group_count; ++g) {
    const hoist_group_spec& spec = options.groups[g];
    if (spec.name == nullptr) return Missing("a group's name");
    if (spec.tensors == nullptr && spec.tensor_count > 0) {
      return Missing("a group's tensors");
    }
    NamedGroup group;
    group.name = spec.name;
    for (size_t t = 0; t < spec.tensor_count; ++t) {
      if (spec.tensors[t] == nullptr) return Missing("a tensor's name");
      group.tensors.emplace_back(spec.tensors[t]);
    }
    request->groups.push_back(std::move(group));
  }
  return Status();
}

Status FillJoined(const hoist_register_options& options,
                  RegisterRequest* request) {
  if (options.joined == nullptr && options.joined_count > 0) {
    return Missing("joined");
  }
  for (size_t j = 0; j < options.joined_count; ++j) {
    const hoist_joined_tensor& in = options.joined[j];
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
    JoinedTensor joined;
    joined.name = in.name;
    joined.shape.assign(in.shape, in.shape + in.rank);
    for (size_t p = 0; p < in.part_count; ++p) {
      const hoist_joined_part& part = in.parts[p];
      if (part.tensor == nullptr) return Missing("a part's tensor");
      joined.parts.push_back({part.tensor, part.offset_bytes, part.size_bytes,
                              part.count, part.stride_bytes});
    }
    request->joined.push_back(std::move(joined));
  }
  return Status();
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
  RegisterRequest request;
  request.name = options.name;
  request.readers = options.readers;
  if (Status s = CheckReaders(options.readers); !s.ok()) return s;
  if (Status s = FillGrouping(options, &request); !s.ok()) return s;
  if (Status s = FillJoined(options, &request); !s.ok()) return s;
  Result<ModelFiles> files = OpenModelFiles(options.path);
  if (!files.ok()) return files.status();
  request.shards = std::move(files->shards);
  request.index = std::move(files->index);
  return Give(session, session.Register(request), model);
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
  PublishRequest request;
  request.model = options.model;
  request.group = std::move(image->group);
  request.image = std::move(image->memfd);
  request.readers = options.readers;
  request.deadline_ms = options.deadline_ms;
  request.of_session = options.of_session != 0;
  if (options.content != nullptr) {
    request.content.assign(options.content,
                           options.content + HOIST_CONTENT_BYTES);
  }
  return Give(session, session.Publish(request), model);
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
  return Guarded(error, [&]() -> Status {
    if (session == nullptr) return Missing("session");
    if (options == nullptr) return Missing("options");
    if (model == nullptr) return Missing("model");
    hoist_register_options given = {};
    if (!hoist::ReadSized(options, &given)) {
      return Status(Code::kInvalidArgument,
                    "set struct_size to sizeof(hoist_register_options)");
    }
    if (given.name == nullptr) return Missing("name");
    if (given.path == nullptr) return Missing("path");
    if (Status s = session->session->Check(); !s.ok()) return s;
    return hoist::Register(*session->session, given, model);
  });
}

int hoist_describe_model(hoist_session* session, const char* name,
                         hoist_model** model, hoist_error** error) {
  return Guarded(error, [&]() -> Status {
    if (session == nullptr) return Missing("session");
    if (name == nullptr) return Missing("name");
    if (model == nullptr) return Missing("model");
    hoist::Session& on = *session->session;
    return hoist::Give(on, on.Describe(name), model);
  });
}

int hoist_publish_group(hoist_session* session,
                        const hoist_publish_options* options,
                        hoist_model** model, hoist_error** error) {
  return Guarded(error, [&]() -> Status {
    if (session == nullptr) return Missing("session");
    if (options == nullptr) return Missing("options");
    hoist_publish_options given = {};
    if (!hoist::ReadSized(options, &given)) {
      return Status(Code::kInvalidArgument,
                    "set struct_size to sizeof(hoist_publish_options)");
    }
    if (given.model == nullptr) return Missing("model's name");
    if (given.group == nullptr) return Missing("group's name");
    if (given.tensors == nullptr && given.tensor_count > 0) {
      return Missing("tensors");
    }
    if (Status s = session->session->Check(); !s.ok()) return s;
    return hoist::Publish(*session->session, given, model);
  });
}

int hoist_find_content(hoist_session* session, const uint8_t* content,
                       hoist_model** model, hoist_error** error) {
  return hoist::Guarded(error, [&]() -> hoist::Status {
    if (session == nullptr) return hoist::Missing("session");
    if (content == nullptr) return hoist::Missing("content");
    if (model == nullptr) return hoist::Missing("model");
    return hoist::Give(
        *session->session,
        session->session->FindContent({content, HOIST_CONTENT_BYTES}), model);
  });
}

int hoist_forget_model(hoist_session* session, const hoist_model* model,
                       hoist_error** error) {
  return hoist::Guarded(error, [&]() -> hoist::Status {
    if (Status s = hoist::CheckBoth(session, model); !s.ok()) return s;
    return session->session->Forget(*model->table);
  });
}

// The handle's own hold goes last, when all is said.
int hoist_done_with_model(hoist_session* session, const hoist_model* model,
                          hoist_error** error) {
  return hoist::Guarded(error, [&]() -> hoist::Status {
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
  // NameOf's views are of literals, which end in NUL.
  return known.has_value() ? hoist::NameOf(*known).data() : "?";
}

int hoist_dtype_bits(int dtype) {
  const auto known = hoist::DTypeFromNumber(dtype);
  return known.has_value() ? hoist::BitsOf(*known) : 0;
}

void hoist_model_free(hoist_model* model) { delete model; }

namespace {

// Of a handle that is NULL: of no model.
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
  return Guarded(error, [&]() -> Status {
    if (model == nullptr) return Missing("model");
    if (info == nullptr) return Missing("info");
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
  return Guarded(error, [&]() -> Status {
    if (model == nullptr) return Missing("model");
    if (info == nullptr) return Missing("info");
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
  return Guarded(error, [&]() -> Status {
    if (model == nullptr) return Missing("model");
    if (name == nullptr) return Missing("name");
    if (group == nullptr) return Missing("group");
    const auto found = model->table->FindGroup(name);
    if (!found.has_value()) {
      return Status(Code::kNotFound, "model \"" + model->table->facts().name +
                                         "\" has no group \"" + name + "\"");
    }
    *group = *found;
    return Status();
  });
}

int hoist_model_find_tensor(const hoist_model* model, const char* name,
                            uint32_t* group, uint32_t* tensor,
                            hoist_error** error) {
  return Guarded(error, [&]() -> Status {
    if (model == nullptr) return Missing("model");
    if (name == nullptr) return Missing("name");
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
