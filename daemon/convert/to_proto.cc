#include <memory>

#include "daemon/convert/types_convert.h"
#include "daemon/model/model.h"
#include "daemon/model/published_group.h"

namespace hoistd {

pb::Readers ReadersToProto(Readers readers) {
  switch (readers) {
    case Readers::kOwner:
      return pb::READERS_OWNER;
    case Readers::kEveryone:
      return pb::READERS_EVERYONE;
  }
  return pb::READERS_UNSPECIFIED;
}

pb::Tier TierToProto(Tier tier) {
  switch (tier) {
    case Tier::kDevice:
      return pb::TIER_DEVICE;
    case Tier::kHost:
      return pb::TIER_HOST;
    case Tier::kPageable:
      return pb::TIER_PAGEABLE;
    case Tier::kDisk:
      return pb::TIER_DISK;
  }
  return pb::TIER_UNSPECIFIED;
}

pb::Residency ResidencyToProto(Residency residency) {
  switch (residency) {
    case Residency::kAbsent:
      return pb::RESIDENCY_ABSENT;
    case Residency::kReserved:
    case Residency::kFilling:
      return pb::RESIDENCY_FILLING;
    case Residency::kArrived:
    case Residency::kPresent:
      return pb::RESIDENCY_PRESENT;
    case Residency::kSpilling:
    case Residency::kLeaving:
      return pb::RESIDENCY_SPILLING;
    case Residency::kLost:
      return pb::RESIDENCY_LOST;
  }
  return pb::RESIDENCY_UNSPECIFIED;
}

pb::DeviceKind DeviceKindToProto(DeviceKind kind) {
  switch (kind) {
    case DeviceKind::kEmulated:
      return pb::DEVICE_KIND_EMULATED;
    case DeviceKind::kCuda:
      return pb::DEVICE_KIND_CUDA;
    case DeviceKind::kInPlace:
      return pb::DEVICE_KIND_IN_PLACE;
  }
  return pb::DEVICE_KIND_UNSPECIFIED;
}

pb::Backing BackingToProto(Backing backing) {
  switch (backing) {
    case Backing::kMemfd:
      return pb::BACKING_MEMFD;
    case Backing::kVmm:
      return pb::BACKING_VMM;
    case Backing::kIpc:
      return pb::BACKING_IPC;
  }
  return pb::BACKING_UNSPECIFIED;
}

void GroupToProto(const Group& group, GroupIndex index, pb::Group* out) {
  out->set_name(group.name);
  out->set_index(index.number());
  out->set_image_bytes(group.image_bytes);
  out->mutable_tensors()->Reserve(static_cast<int>(group.tensors.size()));
  for (const Tensor& tensor : group.tensors) {
    pb::Tensor* to = out->add_tensors();
    to->set_name(tensor.name);
    // Both enums have the same numbers: types.proto, enum DType.
    to->set_dtype(static_cast<pb::DType>(tensor.dtype));
    to->mutable_shape()->Assign(tensor.shape.begin(), tensor.shape.end());
    to->mutable_strides()->Assign(tensor.strides.begin(), tensor.strides.end());
    to->set_offset_bytes(tensor.offset);
    to->set_size_bytes(tensor.bytes);
    to->set_block_type(tensor.block_type);
  }
}

namespace {

void FactsToProto(const Model& model, pb::Model* out) {
  const ModelSpec& spec = *model.spec;
  out->set_id(model.id.number());
  out->set_name(spec.name);
  out->set_fingerprint(std::string(sizeof(Fingerprint), '\0'));
  out->set_readers(ReadersToProto(model.readers));
  out->set_owner_uid(model.owner.number());
  out->set_owner_tenant(std::string(model.owner.tenant()));
  out->set_published(spec.published);
  out->set_image_bytes(spec.image_bytes);
}

void AddGroup(const ModelSpec& spec, uint32_t index, pb::Model* out) {
  pb::Group* const added = out->add_groups();
  GroupToProto(*spec.groups[index], GroupIndex(index), added);
  if (!spec.published) return;
  const Content& content = spec.group_contents[index];
  added->set_content(content.data(), content.size());
}

}  // namespace

void ModelToProto(const Model& model, pb::Model* out) {
  FactsToProto(model, out);
  const ModelSpec& spec = *model.spec;
  const Fingerprint fingerprint = FingerprintOf(ContentOf(spec));
  out->set_fingerprint(fingerprint.data(), fingerprint.size());
  for (uint32_t g = 0; g < spec.groups.size(); ++g) AddGroup(spec, g, out);
}

void PublishedToProto(const Model& model, absl::string_view group,
                      pb::Model* out) {
  const ModelSpec& spec = *model.spec;
  const auto count = static_cast<uint32_t>(spec.groups.size());
  if (count == 1) return ModelToProto(model, out);
  FactsToProto(model, out);
  out->set_group_count(count);
  // A new one is the last, or fills a gap.
  for (uint32_t g = count; g-- > 0;) {
    if (spec.groups[g]->name == group) return AddGroup(spec, g, out);
  }
}

void DeviceToProto(const DeviceView& device, pb::Device* out) {
  const DeviceInfo& info = device.info;
  out->set_index(info.index.number());
  out->set_name(info.name);
  out->set_uuid(info.uuid.data(), info.uuid.size());
  out->set_kind(DeviceKindToProto(info.kind));
  out->set_pool_bytes(device.pool_bytes);
  out->set_span_bytes(info.span_bytes);
  out->set_slab_bytes(device.slab_bytes);
  out->set_link_bytes_per_second(info.link_bytes_per_second);
}

void SlabToProto(const SlabUse& use, DeviceIndex device, pb::Slab* out) {
  out->set_id(use.slab.id.number());
  out->set_device(device.number());
  out->set_offset_bytes(use.slab.offset);
  out->set_size_bytes(use.slab.bytes);
  out->set_backing(BackingToProto(use.share.backing));
  out->set_apart(use.slab.apart);
  out->set_numa_node(use.share.numa_node);
  if (use.share.backing == Backing::kIpc) {
    out->set_ipc_handle(use.share.ipc_handle.data(),
                        use.share.ipc_handle.size());
  }
}

namespace {

// Appends the slab's descriptor to `fds`, and refers to it by its place there.
void AttachSlab(const SlabUse& use, DeviceIndex device, pb::Slab* out,
                std::vector<int>* fds) {
  SlabToProto(use, device, out);
  if (use.share.backing == Backing::kIpc) return;
  out->set_fd_index(static_cast<uint32_t>(fds->size()));
  fds->push_back(use.share.fd);
}

}  // namespace

void LeaseToProto(const LeaseGrant& grant, pb::Lease* out) {
  out->set_id(grant.id.number());
  out->set_model_id(grant.key.model.number());
  out->set_group(grant.key.group.number());
  out->set_device(grant.device.number());
  out->set_offset_bytes(grant.offset);
  out->set_image_bytes(grant.bytes);
  out->set_was_resident(grant.was_resident);
  out->set_apart(grant.apart);
}

void LeaseToProto(const LeaseGrant& grant, pb::Lease* out,
                  std::vector<int>* fds) {
  LeaseToProto(grant, out);
  for (const SlabUse& use : grant.new_slabs) {
    AttachSlab(use, grant.device, out->add_slabs(), fds);
  }
}

void ArenaToProto(const ArenaGrant& grant, pb::Arena* out,
                  std::vector<int>* fds) {
  out->set_id(grant.id.number());
  out->set_size_bytes(grant.bytes);
  for (const SlabUse& use : grant.slabs) {
    AttachSlab(use, grant.device, out->add_slabs(), fds);
  }
}

void ShareToProto(const ShareOptions& share, pb::Share* out) {
  out->set_weight(share.weight);
  out->set_priority(share.priority);
  out->set_max_bytes_per_second(share.max_bytes_per_second);
}

void PlanToProto(const PlanGrant& grant, pb::Plan* out, std::vector<int>* fds) {
  out->set_id(grant.id.number());
  out->set_budget_bytes(grant.budget_bytes);
  out->set_resident_bytes(grant.resident_bytes);
  out->set_ring_bytes(grant.ring_bytes);
  out->set_streamed_bytes(grant.streamed_bytes);
  out->set_lead(grant.lead);
  for (const PlannedGroup& group : grant.groups) {
    pb::Plan::PlannedGroup* to = out->add_groups();
    to->set_group(group.group.number());
    to->set_resident(group.resident);
    if (group.resident) continue;
    to->set_offset_bytes(grant.ring_offset + group.slot.offset);
    to->set_slot_bytes(group.slot.bytes);
  }
  for (const SlabUse& use : grant.new_slabs) {
    AttachSlab(use, grant.device, out->add_slabs(), fds);
  }
}

}  // namespace hoistd
