// What libhoist reads of hoistd: a message with descriptors. A daemon that
// errs, or is none, must not lead a worker outside of what it was given.
#include <fcntl.h>

#include <limits>
#include <set>

#include "client/src/messages/messages.h"
#include "hoist/shared/image_layout.h"
#include "hoist/v1/session.pb.h"
#include "tests/fuzz/fuzz.h"

namespace hoist {
namespace {

namespace pb = hoist::v1;

// Whoever reads a tensor by its shape and strides stays inside of its group's
// image.
void RequireSound(const ModelTable& model) {
  std::set<std::string> groups;
  for (const GroupEntry& group : model.groups()) {
    FUZZ_REQUIRE(group.image_bytes <= kMaxImageBytes);
    if (group.name.empty()) {
      FUZZ_REQUIRE(group.image_bytes == 0 && group.tensors.empty());
      continue;
    }
    FUZZ_REQUIRE(groups.insert(group.name).second);
    for (const TensorEntry& tensor : group.tensors) {
      FUZZ_REQUIRE(tensor.strides.size() == tensor.shape.size());
      const auto span = SpanBytes(tensor.dtype, tensor.shape, tensor.strides);
      FUZZ_REQUIRE(span.has_value() && *span <= tensor.size_bytes);
      FUZZ_REQUIRE(tensor.offset_bytes <= group.image_bytes);
      FUZZ_REQUIRE(tensor.size_bytes <=
                   group.image_bytes - tensor.offset_bytes);
      const auto place = model.FindTensor(tensor.name);
      FUZZ_REQUIRE(place.has_value());
      const GroupEntry& found = model.groups()[place->group];
      FUZZ_REQUIRE(found.tensors[place->tensor].name == tensor.name);
    }
    const auto index = model.FindGroup(group.name);
    FUZZ_REQUIRE(index.has_value() &&
                 model.groups()[*index].name == group.name);
  }
}

void RequireSound(const std::vector<SlabImport>& slabs) {
  std::set<int> fds;
  for (const SlabImport& slab : slabs) {
    if (slab.backing == SlabBacking::kIpc) continue;
    FUZZ_REQUIRE(slab.fd.valid() && fds.insert(slab.fd.get()).second);
  }
}

// No sum of an offset and its bytes wraps.
void RequireRange(uint64_t offset, uint64_t bytes) {
  FUZZ_REQUIRE(bytes <= kMaxImageBytes);
  FUZZ_REQUIRE(offset <= std::numeric_limits<uint64_t>::max() - bytes);
}

void RequireSound(Reply& reply) {
  if (!reply.status.ok()) {
    FUZZ_REQUIRE(std::holds_alternative<std::monostate>(reply.body));
  }
  if (auto* open = std::get_if<OpenReply>(&reply.body)) {
    std::set<uint32_t> devices;
    for (const DeviceFacts& device : open->devices) {
      FUZZ_REQUIRE(devices.insert(device.index).second);
    }
  } else if (auto* model =
                 std::get_if<std::shared_ptr<const ModelTable>>(&reply.body)) {
    RequireSound(**model);
  } else if (auto* lease = std::get_if<LeaseGrant>(&reply.body)) {
    RequireRange(lease->offset_bytes, lease->image_bytes);
    RequireSound(lease->slabs);
  } else if (auto* plan = std::get_if<PlanGrant>(&reply.body)) {
    bool streams = false;
    for (const PlannedGroup& group : plan->groups) {
      RequireRange(group.offset_bytes, group.slot_bytes);
      streams |= !group.resident;
    }
    RequireSound(plan->slabs);
    FUZZ_REQUIRE(plan->slab_device.has_value() == !plan->slabs.empty());
    FUZZ_REQUIRE(plan->lane.valid() == streams);
    FUZZ_REQUIRE(plan->wake.valid() == streams);
  } else if (std::holds_alternative<DaemonAsk>(reply.body)) {
    FUZZ_REQUIRE(reply.request_id == 0);
  }
}

std::string InputOf(int fds, const pb::DaemonMessage& message) {
  return hoistd::fuzz::Output()
      .Put(static_cast<uint8_t>(fds))
      .Bytes(message.SerializeAsString())
      .str();
}

void FillSlab(pb::Slab* slab, pb::Backing backing, uint32_t fd) {
  slab->set_id(1 + fd);
  slab->set_size_bytes(2 << 20);
  slab->set_backing(backing);
  slab->set_fd_index(fd);
}

pb::DaemonMessage ModelSeed() {
  pb::DaemonMessage message;
  message.set_request_id(2);
  pb::Model* model = message.mutable_model();
  model->set_id(1);
  model->set_name("m");
  model->set_fingerprint(std::string(16, 'f'));
  for (uint32_t g = 0; g < 2; ++g) {
    pb::Group* group = model->add_groups();
    group->set_index(g);
    group->set_name("g" + std::to_string(g));
    group->set_image_bytes(4096);
    pb::Tensor* tensor = group->add_tensors();
    tensor->set_name("t" + std::to_string(g));
    tensor->set_dtype(pb::DTYPE_F32);
    tensor->add_shape(4);
    tensor->add_shape(8);
    if (g == 1) {
      tensor->add_strides(1);
      tensor->add_strides(4);
    }
    tensor->set_offset_bytes(256);
    tensor->set_size_bytes(128);
  }
  return message;
}

pb::DaemonMessage PlanSeed() {
  pb::DaemonMessage message;
  message.set_request_id(3);
  pb::Plan* plan = message.mutable_plan();
  plan->set_id(1);
  for (uint32_t g = 0; g < 3; ++g) {
    auto* group = plan->add_groups();
    group->set_group(g);
    group->set_resident(g == 0);
    group->set_offset_bytes(g * 4096);
    group->set_slot_bytes(4096);
  }
  FillSlab(plan->add_slabs(), pb::BACKING_MEMFD, 0);
  plan->set_lane_fd_index(1);
  plan->set_wake_fd_index(2);
  return message;
}

}  // namespace
}  // namespace hoist

namespace hoistd::fuzz {

Seeds MakeSeeds() {
  namespace pb = hoist::v1;
  Seeds seeds = {{"model", hoist::InputOf(0, hoist::ModelSeed())},
                 {"plan", hoist::InputOf(3, hoist::PlanSeed())}};
  pb::DaemonMessage open;
  open.set_request_id(1);
  open.mutable_open_session()->set_instance_id(std::string(16, 'i'));
  for (uint32_t i = 0; i < 2; ++i) {
    pb::Device* device = open.mutable_open_session()->add_devices();
    device->set_index(i);
    device->set_uuid(std::string(16, 'u'));
    device->set_kind(i == 0 ? pb::DEVICE_KIND_CUDA : pb::DEVICE_KIND_EMULATED);
    device->set_span_bytes(1 << 30);
  }
  seeds.emplace_back("open", hoist::InputOf(0, open));
  pb::DaemonMessage lease;
  lease.set_request_id(4);
  lease.mutable_lease()->set_image_bytes(4096);
  hoist::FillSlab(lease.mutable_lease()->add_slabs(), pb::BACKING_VMM, 0);
  pb::Slab* slab = lease.mutable_lease()->add_slabs();
  hoist::FillSlab(slab, pb::BACKING_IPC, 1);
  slab->set_ipc_handle(std::string(64, 'h'));
  seeds.emplace_back("lease", hoist::InputOf(1, lease));
  pb::DaemonMessage ask;
  ask.mutable_close_slabs()->set_number(1);
  ask.mutable_close_slabs()->add_slab_ids(7);
  seeds.emplace_back("ask", hoist::InputOf(0, ask));
  pb::DaemonMessage give_way;
  give_way.mutable_give_way()->set_id(3);
  give_way.mutable_give_way()->set_idle_ms(UINT64_MAX);
  seeds.emplace_back("give_way", hoist::InputOf(0, give_way));
  pb::DaemonMessage error;
  error.set_request_id(5);
  error.set_code(8);
  error.set_message("full");
  seeds.emplace_back("error", hoist::InputOf(0, error));
  return seeds;
}

}  // namespace hoistd::fuzz

// u8 descriptors, then a serialized DaemonMessage.
extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  static const int null = open("/dev/null", O_RDONLY | O_CLOEXEC);
  hoistd::fuzz::Input input(data, size);
  hoist::Packet packet;
  std::vector<int> numbers;
  for (int left = input.Take() % 5; left > 0; --left) {
    packet.fds.emplace_back(fcntl(null, F_DUPFD_CLOEXEC, 0));
    numbers.push_back(packet.fds.back().get());
  }
  packet.body = input.Rest();
  {
    auto reply = hoist::DecodeReply(std::move(packet));
    if (reply.ok()) hoist::RequireSound(*reply);
  }
  for (const int fd : numbers) FUZZ_REQUIRE(fcntl(fd, F_GETFD) == -1);
  return 0;
}
