#include <algorithm>
#include <cmath>
#include <cstring>
#include <limits>
#include <utility>

#include "client/src/messages/messages.h"
#include "hoist/shared/image_layout.h"

namespace hoist {
namespace {

struct FreeMessage {
  void operator()(Hoist__V1__DaemonMessage* message) const {
    hoist__v1__daemon_message__free_unpacked(message, nullptr);
  }
};

Status Malformed(const std::string& what) {
  return Status(Code::kInternal, "hoistd sent a malformed reply: " + what);
}

std::string TextOf(const char* text) { return text == nullptr ? "" : text; }

bool Copy16(const ProtobufCBinaryData& from, std::array<uint8_t, 16>* to) {
  if (from.len != to->size()) return false;
  std::copy_n(from.data, to->size(), to->begin());
  return true;
}

// The wire can set a field to any number. To read an enum without that value is
// undefined behaviour.
template <typename Enum>
int NumberOf(const Enum& field) {
  int number;
  static_assert(sizeof(number) == sizeof(field));
  std::memcpy(&number, &field, sizeof(number));
  return number;
}

Result<DeviceFacts> DecodeDevice(const Hoist__V1__Device& from) {
  DeviceFacts device;
  device.index = from.index;
  device.name = TextOf(from.name);
  device.pool_bytes = from.pool_bytes;
  device.span_bytes = from.span_bytes;
  device.link_bytes_per_second = from.link_bytes_per_second;
  if (!Copy16(from.uuid, &device.uuid)) {
    return Malformed("a device's uuid is not 16 bytes");
  }
  switch (NumberOf(from.kind)) {
    case HOIST__V1__DEVICE_KIND__DEVICE_KIND_EMULATED:
      device.kind = DeviceKind::kEmulated;
      break;
    case HOIST__V1__DEVICE_KIND__DEVICE_KIND_CUDA:
      device.kind = DeviceKind::kCuda;
      break;
    case HOIST__V1__DEVICE_KIND__DEVICE_KIND_IN_PLACE:
      device.kind = DeviceKind::kInPlace;
      break;
    default:
      return Malformed("a device of unknown kind");
  }
  return device;
}

Result<OpenReply> DecodeOpen(const Hoist__V1__OpenSessionReply& in) {
  OpenReply out;
  out.session_id = in.session_id;
  out.daemon_version = TextOf(in.daemon_version);
  if (!Copy16(in.instance_id, &out.instance_id)) {
    return Malformed("the instance's id is not 16 bytes");
  }
  const auto known = [&](uint32_t index) {
    return std::any_of(
        out.devices.begin(), out.devices.end(),
        [&](const DeviceFacts& other) { return other.index == index; });
  };
  for (size_t i = 0; i < in.n_devices; ++i) {
    Result<DeviceFacts> device = DecodeDevice(*in.devices[i]);
    if (!device.ok()) return device.status();
    if (device->kind == DeviceKind::kInPlace) {
      return Malformed("host memory as a device");
    }
    if (known(device->index)) return Malformed("a device twice");
    out.devices.push_back(std::move(device).value());
  }
  out.no_in_place = TextOf(in.no_in_place);
  if (in.in_place == nullptr) return out;
  Result<DeviceFacts> in_place = DecodeDevice(*in.in_place);
  if (!in_place.ok()) return in_place.status();
  if (in_place->kind != DeviceKind::kInPlace || known(in_place->index)) {
    return Malformed("a device as host memory");
  }
  out.in_place = std::move(in_place).value();
  return out;
}

Result<TensorEntry> DecodeTensor(const Hoist__V1__Tensor& in) {
  TensorEntry out;
  out.name = TextOf(in.name);
  const std::optional<DType> dtype = DTypeFromNumber(NumberOf(in.dtype));
  if (!dtype.has_value()) {
    return Malformed("tensor \"" + out.name + "\" has no known dtype");
  }
  out.dtype = *dtype;
  out.shape.assign(in.shape, in.shape + in.n_shape);
  out.strides.assign(in.strides, in.strides + in.n_strides);
  if (out.strides.empty()) {
    std::optional<std::vector<int64_t>> strides = ContiguousStrides(out.shape);
    if (!strides.has_value()) {
      return Malformed("tensor \"" + out.name + "\" is too large");
    }
    out.strides = *std::move(strides);
  }
  out.offset_bytes = in.offset_bytes;
  out.size_bytes = in.size_bytes;
  out.block_type = TextOf(in.block_type);
  return out;
}

Result<ModelTable> DecodeModel(const Hoist__V1__Model& in) {
  ModelTable::Facts facts;
  facts.id = in.id;
  facts.name = TextOf(in.name);
  facts.image_bytes = in.image_bytes;
  facts.published = in.published != 0;
  facts.owner_uid = in.owner_uid;
  facts.owner_tenant = TextOf(in.owner_tenant);
  facts.readers = NumberOf(in.readers);
  if (!Copy16(in.fingerprint, &facts.fingerprint)) {
    return Malformed("a model's fingerprint is not 16 bytes");
  }
  std::vector<GroupEntry> groups;
  groups.reserve(in.n_groups);
  const bool alone = in.group_count > 0 && in.n_groups > 0;
  const uint32_t first = alone ? in.groups[0]->index : 0;
  for (size_t g = 0; g < in.n_groups; ++g) {
    const Hoist__V1__Group& from = *in.groups[g];
    if (from.index != first + g || from.image_bytes > kMaxImageBytes) {
      return Malformed("group \"" + TextOf(from.name) +
                       "\" is out of order or too large");
    }
    GroupEntry group;
    group.name = TextOf(from.name);
    group.image_bytes = from.image_bytes;
    if (from.content.len != 0) {
      if (from.content.len != group.content.emplace().size()) {
        return Malformed("a group's content is not 32 bytes");
      }
      std::copy_n(from.content.data, from.content.len, group.content->begin());
    }
    group.tensors.reserve(from.n_tensors);
    for (size_t t = 0; t < from.n_tensors; ++t) {
      Result<TensorEntry> tensor = DecodeTensor(*from.tensors[t]);
      if (!tensor.ok()) return tensor.status();
      group.tensors.push_back(std::move(tensor).value());
    }
    groups.push_back(std::move(group));
  }
  return ModelTable::Create(std::move(facts), std::move(groups), first,
                            in.group_count);
}

Result<SlabImport> DecodeSlab(const Hoist__V1__Slab& in,
                              std::vector<UniqueFd>* fds) {
  SlabImport out;
  out.id = in.id;
  out.offset = in.offset_bytes;
  out.bytes = in.size_bytes;
  out.apart = in.apart != 0;
  out.numa_node = static_cast<int>(in.numa_node);
  switch (NumberOf(in.backing)) {
    case HOIST__V1__BACKING__BACKING_MEMFD:
    case HOIST__V1__BACKING__BACKING_VMM:
      if (in.fd_index >= fds->size() || !(*fds)[in.fd_index].valid()) {
        return Malformed("a slab's descriptor is missing");
      }
      out.backing = NumberOf(in.backing) == HOIST__V1__BACKING__BACKING_VMM
                        ? SlabBacking::kVmm
                        : SlabBacking::kMemfd;
      out.fd = std::move((*fds)[in.fd_index]);
      return out;
    case HOIST__V1__BACKING__BACKING_IPC:
      if (in.ipc_handle.len != out.ipc_handle.size()) {
        return Malformed("a slab's IPC handle is not 64 bytes");
      }
      std::copy_n(in.ipc_handle.data, out.ipc_handle.size(),
                  out.ipc_handle.begin());
      out.backing = SlabBacking::kIpc;
      return out;
    default:
      return Malformed("a slab of unknown backing");
  }
}

Result<LeaseGrant> DecodeLease(const Hoist__V1__Lease& in,
                               std::vector<UniqueFd>* fds) {
  LeaseGrant out;
  out.id = in.id;
  out.model_id = in.model_id;
  out.group = in.group;
  out.device = in.device;
  out.offset_bytes = in.offset_bytes;
  out.image_bytes = in.image_bytes;
  out.was_resident = in.was_resident != 0;
  out.apart = in.apart != 0;
  if (in.image_bytes > kMaxImageBytes ||
      in.offset_bytes > std::numeric_limits<uint64_t>::max() - in.image_bytes) {
    return Malformed("a lease of more bytes than an image may have");
  }
  for (size_t i = 0; i < in.n_slabs; ++i) {
    if (in.slabs[i]->device != in.device) {
      return Malformed("a slab of another device than the lease's");
    }
    Result<SlabImport> slab = DecodeSlab(*in.slabs[i], fds);
    if (!slab.ok()) return slab.status();
    out.slabs.push_back(std::move(slab).value());
  }
  return out;
}

Result<PlanGrant> DecodePlan(const Hoist__V1__Plan& in,
                             std::vector<UniqueFd>* fds) {
  PlanGrant out;
  out.info.id = in.id;
  out.info.budget_bytes = in.budget_bytes;
  out.info.resident_bytes = in.resident_bytes;
  out.info.ring_bytes = in.ring_bytes;
  out.info.streamed_bytes = in.streamed_bytes;
  out.info.lead = in.lead;
  out.groups.reserve(in.n_groups);
  for (size_t i = 0; i < in.n_groups; ++i) {
    const Hoist__V1__Plan__PlannedGroup& from = *in.groups[i];
    if (from.slot_bytes > kMaxImageBytes ||
        from.offset_bytes >
            std::numeric_limits<uint64_t>::max() - from.slot_bytes) {
      return Malformed("a slot of more bytes than an image may have");
    }
    PlannedGroup group;
    group.group = from.group;
    group.resident = from.resident != 0;
    group.offset_bytes = from.offset_bytes;
    group.slot_bytes = from.slot_bytes;
    out.groups.push_back(group);
  }
  for (size_t i = 0; i < in.n_slabs; ++i) {
    if (in.slabs[i]->device != in.slabs[0]->device) {
      return Malformed("a ring's slabs on two devices");
    }
    Result<SlabImport> slab = DecodeSlab(*in.slabs[i], fds);
    if (!slab.ok()) return slab.status();
    out.slabs.push_back(std::move(slab).value());
    out.slab_device = in.slabs[0]->device;
  }
  if (std::all_of(out.groups.begin(), out.groups.end(),
                  [](const PlannedGroup& group) { return group.resident; })) {
    return out;
  }
  for (const uint32_t index : {in.lane_fd_index, in.wake_fd_index}) {
    if (index >= fds->size() || !(*fds)[index].valid() ||
        in.lane_fd_index == in.wake_fd_index) {
      return Malformed("a lane's descriptor is missing");
    }
  }
  out.lane = std::move((*fds)[in.lane_fd_index]);
  out.wake = std::move((*fds)[in.wake_fd_index]);
  return out;
}

Result<ArenaGrant> DecodeArena(const Hoist__V1__Arena& in,
                               std::vector<UniqueFd>* fds) {
  ArenaGrant out;
  out.id = in.id;
  out.bytes = in.size_bytes;
  uint64_t left = in.size_bytes;
  for (size_t i = 0; i < in.n_slabs; ++i) {
    Result<SlabImport> slab = DecodeSlab(*in.slabs[i], fds);
    if (!slab.ok()) return slab.status();
    if (slab->bytes > left) return Malformed("an arena of less than its slabs");
    left -= slab->bytes;
    out.slabs.push_back(std::move(slab).value());
  }
  if (left != 0 || out.slabs.empty()) {
    return Malformed("an arena of more than its slabs");
  }
  return out;
}

Result<PermitGrant> DecodePermit(const Hoist__V1__CopyPermit& in,
                                 std::vector<UniqueFd>* fds) {
  for (const uint32_t index : {in.memory_fd_index, in.wake_fd_index}) {
    if (index >= fds->size() || !(*fds)[index].valid() ||
        in.memory_fd_index == in.wake_fd_index) {
      return Malformed("a permit's descriptor is missing");
    }
  }
  PermitGrant out;
  out.id = in.id;
  out.memory = std::move((*fds)[in.memory_fd_index]);
  out.wake = std::move((*fds)[in.wake_fd_index]);
  return out;
}

// Numbers outside gRPC's codes, from a newer daemon, become kUnknown.
Code CodeOf(int32_t number) {
  return number < 0 || number > static_cast<int32_t>(Code::kUnauthenticated)
             ? Code::kUnknown
             : static_cast<Code>(number);
}

ResumeReply DecodeResume(const Hoist__V1__ResumeReply& in) {
  ResumeReply lost;
  lost.lost_leases.assign(in.lost_lease_ids,
                          in.lost_lease_ids + in.n_lost_lease_ids);
  lost.lost_plans.assign(in.lost_plan_ids,
                         in.lost_plan_ids + in.n_lost_plan_ids);
  return lost;
}

Result<KnownHeat> DecodeHeat(const Hoist__V1__Heat& in) {
  if (in.n_groups != in.n_heat) return Malformed("heat of no group");
  KnownHeat known;
  known.groups.assign(in.groups, in.groups + in.n_groups);
  known.heat.assign(in.heat, in.heat + in.n_heat);
  for (const float heat : known.heat) {
    // Heat is a sort key, so it must be ordered.
    if (!std::isfinite(heat) || heat < 0) return Malformed("no heat");
  }
  return known;
}

// Stores the decoded body in the reply, or returns the decoder's error.
template <typename T>
Status Put(Result<T> decoded, Reply* reply) {
  if (!decoded.ok()) return decoded.status();
  reply->body = std::move(decoded).value();
  return Status();
}

Status DecodeBody(const Hoist__V1__DaemonMessage& in,
                  std::vector<UniqueFd>* fds, Reply* reply) {
  switch (in.body_case) {
    case HOIST__V1__DAEMON_MESSAGE__BODY_OPEN_SESSION:
      return Put(DecodeOpen(*in.open_session), reply);
    case HOIST__V1__DAEMON_MESSAGE__BODY_MODEL: {
      Result<ModelTable> model = DecodeModel(*in.model);
      if (!model.ok()) return model.status();
      reply->body = std::make_shared<const ModelTable>(std::move(*model));
      return Status();
    }
    case HOIST__V1__DAEMON_MESSAGE__BODY_LEASE:
      return Put(DecodeLease(*in.lease, fds), reply);
    case HOIST__V1__DAEMON_MESSAGE__BODY_PLAN:
      return Put(DecodePlan(*in.plan, fds), reply);
    case HOIST__V1__DAEMON_MESSAGE__BODY_ARENA:
      return Put(DecodeArena(*in.arena, fds), reply);
    case HOIST__V1__DAEMON_MESSAGE__BODY_PERMIT:
      return Put(DecodePermit(*in.permit, fds), reply);
    case HOIST__V1__DAEMON_MESSAGE__BODY_CLOSE_SLABS: {
      const Hoist__V1__CloseSlabs& from = *in.close_slabs;
      if (in.request_id != 0) return Malformed("an ask that is a reply");
      SlabAsk ask = {from.device, from.number, {}};
      ask.slabs.assign(from.slab_ids, from.slab_ids + from.n_slab_ids);
      reply->body = DaemonAsk(std::move(ask));
      return Status();
    }
    case HOIST__V1__DAEMON_MESSAGE__BODY_GIVE_WAY:
      if (in.request_id != 0) return Malformed("an ask that is a reply");
      reply->body = DaemonAsk(
          GiveWay{in.give_way->id, std::chrono::milliseconds(std::min<uint64_t>(
                                       in.give_way->idle_ms, 86'400'000))});
      return Status();
    case HOIST__V1__DAEMON_MESSAGE__BODY_WAKE:
      if (in.request_id != 0) return Malformed("an ask that is a reply");
      reply->body = DaemonAsk(Wake{});
      return Status();
    case HOIST__V1__DAEMON_MESSAGE__BODY_RESUMED:
      if (in.request_id != 0) return Malformed("a notice that is a reply");
      reply->body = Resumed{in.resumed->number};
      return Status();
    case HOIST__V1__DAEMON_MESSAGE__BODY_RESUME:
      reply->body = DecodeResume(*in.resume);
      return Status();
    case HOIST__V1__DAEMON_MESSAGE__BODY_HEAT:
      return Put(DecodeHeat(*in.heat), reply);
    default:
      return Status();
  }
}

}  // namespace

Result<Reply> DecodeReply(Packet packet) {
  const std::unique_ptr<Hoist__V1__DaemonMessage, FreeMessage> in(
      hoist__v1__daemon_message__unpack(
          nullptr, packet.body.size(),
          reinterpret_cast<const uint8_t*>(packet.body.data())));
  if (in == nullptr) return Malformed("it is no DaemonMessage");
  Reply reply;
  reply.request_id = in->request_id;
  if (in->code != 0) {
    reply.status = Status(CodeOf(in->code), TextOf(in->message));
    return reply;
  }
  if (Status s = DecodeBody(*in, &packet.fds, &reply); !s.ok()) return s;
  return reply;
}

}  // namespace hoist
