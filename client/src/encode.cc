#include <deque>

#include "client/src/messages.h"
#include "hoist/v1/session.pb-c.h"

namespace hoist {
namespace {

using Message = Hoist__V1__ClientMessage;

// protobuf-c's strings are not const, though packing only reads them.
char* Text(const std::string& text) { return const_cast<char*>(text.c_str()); }

Message NewMessage(uint64_t request_id,
                   Hoist__V1__ClientMessage__BodyCase body) {
  Message message = HOIST__V1__CLIENT_MESSAGE__INIT;
  message.request_id = request_id;
  message.body_case = body;
  return message;
}

std::string Pack(const Message& message) {
  std::string bytes(hoist__v1__client_message__get_packed_size(&message), '\0');
  hoist__v1__client_message__pack(&message,
                                  reinterpret_cast<uint8_t*>(bytes.data()));
  return bytes;
}

// Owns what a Grouping message points at.
class GroupingMessage {
 public:
  explicit GroupingMessage(const RegisterRequest& request) {
    for (const NamedGroup& group : request.groups) {
      names_.emplace_back();
      for (const std::string& tensor : group.tensors) {
        names_.back().push_back(Text(tensor));
      }
      Hoist__V1__Grouping__Named named = HOIST__V1__GROUPING__NAMED__INIT;
      named.name = Text(group.name);
      named.n_tensors = names_.back().size();
      named.tensors = names_.back().data();
      named_.push_back(named);
    }
    for (auto& named : named_) pointers_.push_back(&named);
    message_.rule = static_cast<Hoist__V1__Grouping__Rule>(request.rule);
    message_.n_groups = pointers_.size();
    message_.groups = pointers_.data();
  }
  GroupingMessage(const GroupingMessage&) = delete;
  GroupingMessage& operator=(const GroupingMessage&) = delete;

  Hoist__V1__Grouping* get() { return &message_; }

 private:
  std::deque<std::vector<char*>> names_;
  std::deque<Hoist__V1__Grouping__Named> named_;
  std::vector<Hoist__V1__Grouping__Named*> pointers_;
  Hoist__V1__Grouping message_ = HOIST__V1__GROUPING__INIT;
};

// Owns what the JoinedTensor messages point at.
class JoinedMessages {
 public:
  explicit JoinedMessages(const std::vector<JoinedTensor>& all) {
    for (const JoinedTensor& joined : all) Add(joined);
    for (auto& message : messages_) pointers_.push_back(&message);
  }
  JoinedMessages(const JoinedMessages&) = delete;
  JoinedMessages& operator=(const JoinedMessages&) = delete;

  std::vector<Hoist__V1__JoinedTensor*>& get() { return pointers_; }

 private:
  void Add(const JoinedTensor& joined) {
    auto& parts = parts_.emplace_back();
    for (const JoinedTensor::Part& part : joined.parts) {
      Hoist__V1__JoinedTensor__Part message =
          HOIST__V1__JOINED_TENSOR__PART__INIT;
      message.tensor = Text(part.tensor);
      message.offset_bytes = part.offset_bytes;
      message.size_bytes = part.size_bytes;
      message.count = part.count;
      message.stride_bytes = part.stride_bytes;
      parts.push_back(message);
    }
    auto& part_pointers = part_pointers_.emplace_back();
    for (auto& part : parts) part_pointers.push_back(&part);
    Hoist__V1__JoinedTensor message = HOIST__V1__JOINED_TENSOR__INIT;
    message.name = Text(joined.name);
    message.n_shape = joined.shape.size();
    message.shape = const_cast<int64_t*>(joined.shape.data());
    message.n_parts = part_pointers.size();
    message.parts = part_pointers.data();
    messages_.push_back(message);
  }

  std::deque<std::vector<Hoist__V1__JoinedTensor__Part>> parts_;
  std::deque<std::vector<Hoist__V1__JoinedTensor__Part*>> part_pointers_;
  std::deque<Hoist__V1__JoinedTensor> messages_;
  std::vector<Hoist__V1__JoinedTensor*> pointers_;
};

Hoist__V1__RegisterModelRequest__File FileMessage(const OpenFile& file,
                                                  size_t fd_index) {
  Hoist__V1__RegisterModelRequest__File message =
      HOIST__V1__REGISTER_MODEL_REQUEST__FILE__INIT;
  message.name = Text(file.name);
  message.fd_index = static_cast<uint32_t>(fd_index);
  return message;
}

Hoist__V1__Tensor TensorMessage(const TensorEntry& tensor) {
  Hoist__V1__Tensor message = HOIST__V1__TENSOR__INIT;
  message.name = Text(tensor.name);
  message.dtype = static_cast<Hoist__V1__DType>(tensor.dtype);
  message.n_shape = tensor.shape.size();
  message.shape = const_cast<int64_t*>(tensor.shape.data());
  // The contract's word for contiguous is: no strides.
  const auto contiguous = ContiguousStrides(tensor.shape);
  if (!contiguous.has_value() || *contiguous != tensor.strides) {
    message.n_strides = tensor.strides.size();
    message.strides = const_cast<int64_t*>(tensor.strides.data());
  }
  message.offset_bytes = tensor.offset_bytes;
  message.size_bytes = tensor.size_bytes;
  return message;
}

}  // namespace

std::string EncodeOpenSession(uint64_t request_id, const std::string& name,
                              uint64_t device_budget_bytes) {
  Hoist__V1__OpenSessionRequest open = HOIST__V1__OPEN_SESSION_REQUEST__INIT;
  open.client_name = Text(name);
  open.device_budget_bytes = device_budget_bytes;
  open.closes_slabs = 1;
  open.resumes = 1;
  Message message =
      NewMessage(request_id, HOIST__V1__CLIENT_MESSAGE__BODY_OPEN_SESSION);
  message.open_session = &open;
  return Pack(message);
}

std::string EncodeRegister(uint64_t request_id,
                           const RegisterRequest& request) {
  std::vector<Hoist__V1__RegisterModelRequest__File> files;
  for (const OpenFile& shard : request.shards) {
    files.push_back(FileMessage(shard, files.size()));
  }
  std::vector<Hoist__V1__RegisterModelRequest__File*> pointers;
  for (auto& file : files) pointers.push_back(&file);
  GroupingMessage grouping(request);
  JoinedMessages joined(request.joined);

  Hoist__V1__RegisterModelRequest body =
      HOIST__V1__REGISTER_MODEL_REQUEST__INIT;
  body.name = Text(request.name);
  body.n_shards = pointers.size();
  body.shards = pointers.data();
  Hoist__V1__RegisterModelRequest__File index;
  if (!request.index.empty()) {
    index = FileMessage(request.index.front(), request.shards.size());
    body.index = &index;
  }
  body.grouping = grouping.get();
  body.n_joined = joined.get().size();
  body.joined = joined.get().data();
  body.readers = static_cast<Hoist__V1__Readers>(request.readers);
  Message message =
      NewMessage(request_id, HOIST__V1__CLIENT_MESSAGE__BODY_REGISTER_MODEL);
  message.register_model = &body;
  return Pack(message);
}

std::string EncodePublish(uint64_t request_id, const PublishRequest& request) {
  std::vector<Hoist__V1__Tensor> tensors;
  for (const TensorEntry& tensor : request.group.tensors) {
    tensors.push_back(TensorMessage(tensor));
  }
  std::vector<Hoist__V1__Tensor*> pointers;
  for (auto& tensor : tensors) pointers.push_back(&tensor);
  Hoist__V1__Group group = HOIST__V1__GROUP__INIT;
  group.name = Text(request.group.name);
  group.image_bytes = request.group.image_bytes;
  group.n_tensors = pointers.size();
  group.tensors = pointers.data();

  Hoist__V1__PublishRequest body = HOIST__V1__PUBLISH_REQUEST__INIT;
  body.model = Text(request.model);
  body.group = &group;
  body.fd_index = 0;
  body.readers = static_cast<Hoist__V1__Readers>(request.readers);
  body.deadline_ms = request.deadline_ms;
  body.of_session = request.of_session ? 1 : 0;
  body.content.len = request.content.size();
  body.content.data = const_cast<uint8_t*>(request.content.data());
  Message message =
      NewMessage(request_id, HOIST__V1__CLIENT_MESSAGE__BODY_PUBLISH);
  message.publish = &body;
  return Pack(message);
}

std::string EncodeDescribe(uint64_t request_id, const std::string& name) {
  Hoist__V1__DescribeModelRequest body =
      HOIST__V1__DESCRIBE_MODEL_REQUEST__INIT;
  body.name = Text(name);
  Message message =
      NewMessage(request_id, HOIST__V1__CLIENT_MESSAGE__BODY_DESCRIBE_MODEL);
  message.describe_model = &body;
  return Pack(message);
}

std::string EncodeFindContent(uint64_t request_id,
                              std::span<const uint8_t> content) {
  Hoist__V1__FindContentRequest body = HOIST__V1__FIND_CONTENT_REQUEST__INIT;
  body.content.len = content.size();
  body.content.data = const_cast<uint8_t*>(content.data());
  Message message =
      NewMessage(request_id, HOIST__V1__CLIENT_MESSAGE__BODY_FIND_CONTENT);
  message.find_content = &body;
  return Pack(message);
}

std::string EncodeForget(uint64_t request_id, uint64_t model_id) {
  Hoist__V1__ForgetModelRequest body = HOIST__V1__FORGET_MODEL_REQUEST__INIT;
  body.model_id = model_id;
  Message message =
      NewMessage(request_id, HOIST__V1__CLIENT_MESSAGE__BODY_FORGET_MODEL);
  message.forget_model = &body;
  return Pack(message);
}

std::string EncodeStage(uint64_t request_id, const StageRequest& request) {
  Hoist__V1__StageRequest body = HOIST__V1__STAGE_REQUEST__INIT;
  body.model_id = request.model_id;
  body.group = request.group;
  body.device = request.device;
  body.deadline_ms = request.deadline_ms;
  body.apart = request.apart ? 1 : 0;
  body.background = request.background ? 1 : 0;
  Message message =
      NewMessage(request_id, HOIST__V1__CLIENT_MESSAGE__BODY_STAGE);
  message.stage = &body;
  return Pack(message);
}

std::string EncodeReadImage(uint64_t request_id,
                            const ReadImageRequest& request) {
  Hoist__V1__ReadImageRequest body = HOIST__V1__READ_IMAGE_REQUEST__INIT;
  body.model_id = request.model_id;
  body.group = request.group;
  body.fd_index = 0;
  body.deadline_ms = request.deadline_ms;
  Message message =
      NewMessage(request_id, HOIST__V1__CLIENT_MESSAGE__BODY_READ_IMAGE);
  message.read_image = &body;
  return Pack(message);
}

std::string EncodePrefetch(uint64_t request_id, uint64_t model_id,
                           std::span<const uint32_t> groups, int tier,
                           uint32_t device) {
  Hoist__V1__PrefetchRequest body = HOIST__V1__PREFETCH_REQUEST__INIT;
  body.model_id = model_id;
  body.n_groups = groups.size();
  body.groups = const_cast<uint32_t*>(groups.data());
  body.tier = static_cast<Hoist__V1__Tier>(tier);
  body.device = device;
  Message message =
      NewMessage(request_id, HOIST__V1__CLIENT_MESSAGE__BODY_PREFETCH);
  message.prefetch = &body;
  return Pack(message);
}

std::string EncodeHeat(uint64_t request_id, const HeatReport& report) {
  Hoist__V1__Heat heat = HOIST__V1__HEAT__INIT;
  heat.n_groups = report.groups.size();
  heat.groups = const_cast<uint32_t*>(report.groups.data());
  heat.n_heat = report.heat.size();
  heat.heat = const_cast<float*>(report.heat.data());
  Hoist__V1__HeatRequest body = HOIST__V1__HEAT_REQUEST__INIT;
  body.model_id = report.model_id;
  body.heat = &heat;
  body.device = report.device;
  body.touched_hot_bytes = report.touched_hot_bytes;
  body.touched_cold_bytes = report.touched_cold_bytes;
  Message message =
      NewMessage(request_id, HOIST__V1__CLIENT_MESSAGE__BODY_HEAT);
  message.heat = &body;
  return Pack(message);
}

std::string EncodeSetOrder(uint64_t request_id, uint64_t model_id,
                           std::span<const uint32_t> groups) {
  Hoist__V1__SetOrderRequest body = HOIST__V1__SET_ORDER_REQUEST__INIT;
  body.model_id = model_id;
  body.n_groups = groups.size();
  body.groups = const_cast<uint32_t*>(groups.data());
  Message message =
      NewMessage(request_id, HOIST__V1__CLIENT_MESSAGE__BODY_SET_ORDER);
  message.set_order = &body;
  return Pack(message);
}

std::string EncodeRelease(uint64_t request_id,
                          std::span<const uint64_t> lease_ids) {
  Hoist__V1__ReleaseRequest body = HOIST__V1__RELEASE_REQUEST__INIT;
  body.n_lease_ids = lease_ids.size();
  body.lease_ids = const_cast<uint64_t*>(lease_ids.data());
  Message message =
      NewMessage(request_id, HOIST__V1__CLIENT_MESSAGE__BODY_RELEASE);
  message.release = &body;
  return Pack(message);
}

std::string EncodeResume(uint64_t request_id, const ResumeRequest& request) {
  using Slab = Hoist__V1__ResumeRequest__OpenSlab;
  std::vector<Slab> slabs;
  for (const OpenSlab& slab : request.slabs) {
    slabs.push_back(HOIST__V1__RESUME_REQUEST__OPEN_SLAB__INIT);
    slabs.back().device = slab.device;
    slabs.back().slab_id = slab.id;
  }
  std::vector<Slab*> pointers;
  for (Slab& slab : slabs) pointers.push_back(&slab);
  Hoist__V1__ResumeRequest body = HOIST__V1__RESUME_REQUEST__INIT;
  body.number = request.number;
  body.n_lease_ids = request.leases.size();
  body.lease_ids = const_cast<uint64_t*>(request.leases.data());
  body.n_plan_ids = request.plans.size();
  body.plan_ids = const_cast<uint64_t*>(request.plans.data());
  body.n_arena_ids = request.arenas.size();
  body.arena_ids = const_cast<uint64_t*>(request.arenas.data());
  body.n_slabs = pointers.size();
  body.slabs = pointers.data();
  Message message =
      NewMessage(request_id, HOIST__V1__CLIENT_MESSAGE__BODY_RESUME);
  message.resume = &body;
  return Pack(message);
}

std::string EncodeSlabsClosed(uint64_t request_id, const SlabAsk& ask,
                              std::span<const uint64_t> closed) {
  Hoist__V1__SlabsClosedRequest body = HOIST__V1__SLABS_CLOSED_REQUEST__INIT;
  body.device = ask.device;
  body.number = ask.number;
  body.n_slab_ids = closed.size();
  body.slab_ids = const_cast<uint64_t*>(closed.data());
  Message message =
      NewMessage(request_id, HOIST__V1__CLIENT_MESSAGE__BODY_SLABS_CLOSED);
  message.slabs_closed = &body;
  return Pack(message);
}

std::string EncodeSetPlan(uint64_t request_id, const SetPlanRequest& request) {
  Hoist__V1__Share share = HOIST__V1__SHARE__INIT;
  share.weight = request.weight;
  share.priority = request.priority;
  share.max_bytes_per_second = request.max_bytes_per_second;
  Hoist__V1__SetPlanRequest body = HOIST__V1__SET_PLAN_REQUEST__INIT;
  body.model_id = request.model_id;
  body.device = request.device;
  body.budget_bytes = request.budget_bytes;
  body.n_order = request.order.size();
  body.order = const_cast<uint32_t*>(request.order.data());
  body.deadline_ms = request.deadline_ms;
  body.replaces = request.replaces;
  body.stage_deadline_ms = request.stage_deadline_ms;
  body.share = &share;
  Message message =
      NewMessage(request_id, HOIST__V1__CLIENT_MESSAGE__BODY_SET_PLAN);
  message.set_plan = &body;
  return Pack(message);
}

std::string EncodeOpenArena(uint64_t request_id, uint64_t bytes,
                            uint64_t deadline_ms) {
  Hoist__V1__OpenArenaRequest body = HOIST__V1__OPEN_ARENA_REQUEST__INIT;
  body.size_bytes = bytes;
  body.deadline_ms = deadline_ms;
  Message message =
      NewMessage(request_id, HOIST__V1__CLIENT_MESSAGE__BODY_OPEN_ARENA);
  message.open_arena = &body;
  return Pack(message);
}

std::string EncodeCloseArena(uint64_t request_id, uint64_t arena_id) {
  Hoist__V1__CloseArenaRequest body = HOIST__V1__CLOSE_ARENA_REQUEST__INIT;
  body.arena_id = arena_id;
  Message message =
      NewMessage(request_id, HOIST__V1__CLIENT_MESSAGE__BODY_CLOSE_ARENA);
  message.close_arena = &body;
  return Pack(message);
}

std::string EncodeClearPlan(uint64_t request_id, uint64_t plan_id) {
  Hoist__V1__ClearPlanRequest body = HOIST__V1__CLEAR_PLAN_REQUEST__INIT;
  body.plan_id = plan_id;
  Message message =
      NewMessage(request_id, HOIST__V1__CLIENT_MESSAGE__BODY_CLEAR_PLAN);
  message.clear_plan = &body;
  return Pack(message);
}

std::string EncodeOpenCopier(uint64_t request_id,
                             const OpenCopierRequest& request) {
  Hoist__V1__Share share = HOIST__V1__SHARE__INIT;
  share.weight = request.weight;
  share.priority = request.priority;
  share.max_bytes_per_second = request.max_bytes_per_second;
  Hoist__V1__OpenCopierRequest body = HOIST__V1__OPEN_COPIER_REQUEST__INIT;
  body.device = request.device;
  body.share = &share;
  Message message =
      NewMessage(request_id, HOIST__V1__CLIENT_MESSAGE__BODY_OPEN_COPIER);
  message.open_copier = &body;
  return Pack(message);
}

std::string EncodeCloseCopier(uint64_t request_id, uint64_t copier_id) {
  Hoist__V1__CloseCopierRequest body = HOIST__V1__CLOSE_COPIER_REQUEST__INIT;
  body.copier_id = copier_id;
  Message message =
      NewMessage(request_id, HOIST__V1__CLIENT_MESSAGE__BODY_CLOSE_COPIER);
  message.close_copier = &body;
  return Pack(message);
}

}  // namespace hoist
