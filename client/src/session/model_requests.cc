#include "client/src/session/model_requests.h"

#include <deque>
#include <span>
#include <string>
#include <tuple>
#include <vector>

#include "client/src/model/model_files.h"
#include "client/src/session/request_checks.h"

namespace hoist {
namespace {

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

}  // namespace

Result<HeldModel> Register(Session& session,
                           const hoist_register_options& options) {
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
  return session.CallForModel(request.base, made.fds);
}

Result<HeldModel> Describe(Session& session, const char* name) {
  Hoist__V1__DescribeModelRequest request =
      HOIST__V1__DESCRIBE_MODEL_REQUEST__INIT;
  request.name = Text(name);
  return session.CallForModel(request.base);
}

Result<HeldModel> FindByContent(Session& session, const uint8_t* content) {
  Hoist__V1__FindContentRequest request = HOIST__V1__FIND_CONTENT_REQUEST__INIT;
  request.content = Binary({content, HOIST_CONTENT_BYTES});
  return session.CallForModel(request.base);
}

Result<ModelPtr> DescribeHeld(Session& session, const ModelTable& model) {
  const std::string& name = model.facts().name;
  Hoist__V1__DescribeModelRequest request =
      HOIST__V1__DESCRIBE_MODEL_REQUEST__INIT;
  request.name = Text(name.c_str());
  Result<ModelPtr> now = session.CallForHeld(request.base);
  if (!now.ok()) return now;
  if ((*now)->facts().id == model.facts().id && (*now)->whole()) return now;
  return Status(
      Code::kFailedPrecondition,
      "the model \"" + name + "\" was forgotten, and is another one by now");
}

}  // namespace hoist
