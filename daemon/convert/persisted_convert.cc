#include "daemon/convert/persisted_convert.h"

#include <algorithm>
#include <utility>

#include "absl/strings/str_cat.h"
#include "daemon/base/status.h"
#include "daemon/convert/types_convert.h"
#include "daemon/model/file_header.h"
#include "hoist/v1/persisted.pb.h"

namespace hoistd {
namespace {

absl::Status Malformed(absl::string_view what) {
  return absl::InvalidArgumentError(
      absl::StrCat("what was kept of a ", what, " makes no sense"));
}

void UserToProto(const std::optional<User>& user, pb::PersistedUser* out) {
  out->set_everyone(!user.has_value());
  if (!user.has_value()) return;
  if (user->is_tenant()) {
    out->set_tenant(std::string(user->tenant()));
  } else {
    out->set_uid(user->number());
  }
}

// The optional is empty for everyone.
absl::StatusOr<std::optional<User>> ReaderFromProto(
    const pb::PersistedUser& in) {
  if (in.everyone()) return std::nullopt;
  if (in.tenant().empty()) return std::optional<User>(User(in.uid()));
  const std::optional<User> tenant = User::Tenant(in.tenant());
  // An invalid tenant name must not become everyone.
  if (!tenant.has_value()) return Malformed("user");
  return tenant;
}

absl::StatusOr<User> UserFromProto(const pb::PersistedUser& in) {
  HOIST_ASSIGN_OR_RETURN(const std::optional<User> user, ReaderFromProto(in));
  if (!user.has_value()) return Malformed("user");
  return *user;
}

template <typename Array>
bool CopyBytes(const std::string& from, Array& to) {
  if (from.size() != to.size()) return false;
  std::copy(from.begin(), from.end(), to.begin());
  return true;
}

void FileToProto(const ModelSpec& spec, size_t file,
                 pb::PersistedSpec::File* out) {
  const FileIdentity& identity = spec.identities[file];
  out->set_name(spec.files[file]);
  out->set_device(identity.device);
  out->set_inode(identity.inode);
  out->set_size_bytes(identity.size);
  out->set_mtime_ns(identity.mtime_ns);
  out->set_ctime_ns(identity.ctime_ns);
  out->set_header_hash(identity.header_hash.data(),
                       identity.header_hash.size());
  out->set_sheet_bytes(spec.sheets[file]->bytes);
  for (const Sheet::Run& run : spec.sheets[file]->runs) {
    pb::PersistedSpec::Run* to = out->add_runs();
    to->set_offset(run.offset);
    to->set_file_offset(run.file_offset);
    to->set_size_bytes(run.bytes);
  }
}

absl::Status AddFile(const pb::PersistedSpec::File& in, ModelSpec& spec) {
  FileIdentity identity;
  identity.device = in.device();
  identity.inode = in.inode();
  identity.size = in.size_bytes();
  identity.mtime_ns = in.mtime_ns();
  identity.ctime_ns = in.ctime_ns();
  if (!CopyBytes(in.header_hash(), identity.header_hash)) {
    return Malformed("file");
  }
  auto sheet = std::make_shared<Sheet>();
  sheet->bytes = in.sheet_bytes();
  for (const pb::PersistedSpec::Run& run : in.runs()) {
    sheet->runs.push_back({run.offset(), run.file_offset(), run.size_bytes()});
  }
  spec.files.push_back(in.name());
  spec.identities.push_back(identity);
  spec.book_bytes += BookBytesOf(*sheet);
  spec.sheets.push_back(std::move(sheet));
  return absl::OkStatus();
}

absl::Status AddGroup(const pb::PersistedSpec::SourceGroup& in,
                      ModelSpec& spec) {
  auto group = std::make_shared<Group>();
  group->name = in.group().name();
  group->image_bytes = in.group().image_bytes();
  for (const pb::Tensor& from : in.group().tensors()) {
    Tensor tensor;
    tensor.name = from.name();
    tensor.dtype = static_cast<hoist::DType>(from.dtype());
    tensor.shape.assign(from.shape().begin(), from.shape().end());
    tensor.strides.assign(from.strides().begin(), from.strides().end());
    tensor.offset = from.offset_bytes();
    tensor.bytes = from.size_bytes();
    tensor.block_type = from.block_type();
    group->tensors.push_back(std::move(tensor));
  }
  for (const pb::PersistedSpec::SourceRun& run : in.runs()) {
    const bool fits =
        run.file() < spec.sheets.size() &&
        run.size_bytes() <= group->image_bytes &&
        run.image_offset() <= group->image_bytes - run.size_bytes();
    if (!fits) return Malformed("group");
    group->runs.push_back({{run.file(), run.sheet_offset(), run.size_bytes()},
                           run.image_offset()});
  }
  for (const pb::PersistedSpec::Reach& reach : in.reaches()) {
    const bool fits = reach.file() < spec.sheets.size() &&
                      reach.from() <= reach.to() &&
                      reach.to() <= spec.sheets[reach.file()]->bytes;
    if (!fits) return Malformed("group");
    group->reaches.push_back(
        {reach.file(), reach.from(), reach.to() - reach.from()});
  }
  spec.image_bytes += group->image_bytes;
  spec.tensors += static_cast<uint32_t>(group->tensors.size());
  spec.book_bytes += BookBytesOf(*group);
  spec.groups.push_back(std::move(group));
  return absl::OkStatus();
}

template <typename Message>
absl::StatusOr<Message> Parse(absl::string_view bytes, absl::string_view what) {
  Message message;
  if (!message.ParseFromArray(bytes.data(), static_cast<int>(bytes.size()))) {
    return Malformed(what);
  }
  return message;
}

}  // namespace

std::string ToRecord(const PersistedInstance& instance) {
  pb::PersistedInstance out;
  out.set_instance_id(instance.id.data(), instance.id.size());
  out.set_generation(instance.generation);
  for (const auto& uuid : instance.devices) {
    out.add_device_uuids(uuid.data(), uuid.size());
  }
  return out.SerializeAsString();
}

absl::StatusOr<PersistedInstance> InstanceFromRecord(absl::string_view bytes) {
  HOIST_ASSIGN_OR_RETURN(const auto in,
                         Parse<pb::PersistedInstance>(bytes, "hoistd"));
  PersistedInstance instance;
  instance.generation = in.generation();
  bool right = CopyBytes(in.instance_id(), instance.id);
  for (const std::string& uuid : in.device_uuids()) {
    right = CopyBytes(uuid, instance.devices.emplace_back()) && right;
  }
  if (!right) return Malformed("hoistd");
  return instance;
}

std::string ToRecord(const ModelRecord& model) {
  pb::PersistedModel out;
  UserToProto(model.owner, out.mutable_owner());
  out.set_readers(ReadersToProto(model.readers));
  out.set_name(model.name);
  out.set_published(model.spec == 0);
  out.mutable_missing_groups()->Assign(model.missing_groups.begin(),
                                       model.missing_groups.end());
  if (model.spec == 0) return out.SerializeAsString();
  out.mutable_files()->Assign(model.files.begin(), model.files.end());
  out.set_spec(model.spec);
  out.set_spec_hash(model.spec_hash.data(), model.spec_hash.size());
  return out.SerializeAsString();
}

absl::StatusOr<ModelRecord> ModelFromRecord(absl::string_view bytes) {
  HOIST_ASSIGN_OR_RETURN(const auto in,
                         Parse<pb::PersistedModel>(bytes, "model"));
  ModelRecord model;
  HOIST_ASSIGN_OR_RETURN(model.owner, UserFromProto(in.owner()));
  HOIST_ASSIGN_OR_RETURN(const std::optional<Readers> readers,
                         ReadersFromProto(in.readers()));
  if (!readers.has_value()) return Malformed("model");
  model.readers = *readers;
  model.name = in.name();
  // The next start reserves a place for each, so the number must be bounded.
  for (const uint32_t place : in.missing_groups()) {
    const bool rises =
        model.missing_groups.empty() || model.missing_groups.back() < place;
    if (!rises || place >= kMaxTensors) return Malformed("model");
    model.missing_groups.push_back(place);
  }
  if (in.published()) return model;
  if (in.spec() == 0 || !CopyBytes(in.spec_hash(), model.spec_hash)) {
    return Malformed("model");
  }
  model.spec = in.spec();
  model.files.assign(in.files().begin(), in.files().end());
  return model;
}

std::string ToRecord(const ModelSpec& spec) {
  pb::PersistedSpec out;
  out.set_name(spec.name);
  out.set_content(spec.content.data(), spec.content.size());
  for (size_t file = 0; file < spec.files.size(); ++file) {
    FileToProto(spec, file, out.add_files());
  }
  uint32_t index = 0;
  for (const std::shared_ptr<const Group>& group : spec.groups) {
    pb::PersistedSpec::SourceGroup* to = out.add_groups();
    GroupToProto(*group, GroupIndex(index++), to->mutable_group());
    for (const SourceRun& run : group->runs) {
      pb::PersistedSpec::SourceRun* into = to->add_runs();
      into->set_file(run.from.file);
      into->set_sheet_offset(run.from.offset);
      into->set_image_offset(run.image_offset);
      into->set_size_bytes(run.from.bytes);
    }
    for (const SheetRange& reach : group->reaches) {
      pb::PersistedSpec::Reach* into = to->add_reaches();
      into->set_file(reach.file);
      into->set_from(reach.offset);
      into->set_to(reach.end());
    }
  }
  return out.SerializeAsString();
}

absl::StatusOr<std::shared_ptr<const ModelSpec>> SpecFromRecord(
    absl::string_view bytes) {
  HOIST_ASSIGN_OR_RETURN(const auto in,
                         Parse<pb::PersistedSpec>(bytes, "model"));
  auto spec = std::make_shared<ModelSpec>();
  spec->name = in.name();
  if (!CopyBytes(in.content(), spec->content)) return Malformed("model");
  for (const pb::PersistedSpec::File& file : in.files()) {
    HOIST_RETURN_IF_ERROR(AddFile(file, *spec));
  }
  for (const pb::PersistedSpec::SourceGroup& group : in.groups()) {
    HOIST_RETURN_IF_ERROR(AddGroup(group, *spec));
  }
  return spec;
}

std::string ToRecord(const PersistedSlab& slab) {
  pb::PersistedSlab out;
  out.set_device(slab.device.number());
  out.set_id(slab.slab.id.number());
  out.set_offset_bytes(slab.slab.offset);
  out.set_size_bytes(slab.slab.bytes);
  out.set_backing(BackingToProto(slab.slab.backing));
  out.set_apart(slab.slab.apart);
  out.set_writable(slab.slab.writable);
  UserToProto(slab.reader, out.mutable_reader());
  return out.SerializeAsString();
}

absl::StatusOr<PersistedSlab> SlabFromRecord(absl::string_view bytes) {
  HOIST_ASSIGN_OR_RETURN(const auto in,
                         Parse<pb::PersistedSlab>(bytes, "slab"));
  PersistedSlab slab;
  slab.device = DeviceIndex(in.device());
  slab.slab.id = SlabId(in.id());
  slab.slab.offset = in.offset_bytes();
  slab.slab.bytes = in.size_bytes();
  slab.slab.apart = in.apart();
  slab.slab.writable = in.writable();
  switch (in.backing()) {
    case pb::BACKING_MEMFD:
      slab.slab.backing = Backing::kMemfd;
      break;
    case pb::BACKING_VMM:
      slab.slab.backing = Backing::kVmm;
      break;
    default:
      return Malformed("slab");
  }
  HOIST_ASSIGN_OR_RETURN(slab.reader, ReaderFromProto(in.reader()));
  return slab;
}

std::string ToRecord(const PersistedCopy& copy) {
  pb::PersistedCopy out;
  out.set_model_id(copy.key->model.number());
  out.set_group(copy.key->group.number());
  out.set_name(copy.group);
  out.set_damaged(copy.damaged);
  return out.SerializeAsString();
}

absl::StatusOr<PersistedCopy> CopyFromRecord(absl::string_view bytes) {
  HOIST_ASSIGN_OR_RETURN(const auto in,
                         Parse<pb::PersistedCopy>(bytes, "copy"));
  PersistedCopy copy;
  copy.key = GroupKey{ModelId(in.model_id()), GroupIndex(in.group())};
  copy.group = in.name();
  copy.damaged = in.damaged();
  return copy;
}

std::string ToRecord(const PersistedSession& session) {
  const OpenSessionArgs& args = *session.args;
  pb::PersistedSession out;
  out.set_client_name(args.client_name);
  out.set_device_budget_bytes(args.device_budget_bytes);
  out.set_closes_slabs(args.closes_slabs);
  UserToProto(args.peer.uid, out.mutable_user());
  out.set_pid(args.peer.pid);
  out.set_admin(args.peer.admin);
  out.set_via(args.peer.via);
  out.set_protocol(args.protocol);
  return out.SerializeAsString();
}

absl::StatusOr<PersistedSession> SessionFromRecord(SessionId id,
                                                   absl::string_view bytes) {
  HOIST_ASSIGN_OR_RETURN(const auto in,
                         Parse<pb::PersistedSession>(bytes, "session"));
  OpenSessionArgs args;
  args.client_name = in.client_name();
  args.device_budget_bytes = in.device_budget_bytes();
  args.closes_slabs = in.closes_slabs();
  HOIST_ASSIGN_OR_RETURN(args.peer.uid, UserFromProto(in.user()));
  args.peer.pid = in.pid();
  args.peer.admin = in.admin();
  args.peer.via = in.via();
  args.protocol = in.protocol() == 0 ? 1 : in.protocol();
  return PersistedSession{id, std::move(args)};
}

std::string ToRecord(const PersistedLease& lease) {
  pb::PersistedLease out;
  out.set_session_id(lease.session.number());
  out.set_model_id(lease.copy->key.model.number());
  out.set_group(lease.copy->key.group.number());
  out.set_device(lease.copy->place.at.device.number());
  out.set_apart(lease.copy->place.apart);
  return out.SerializeAsString();
}

absl::StatusOr<PersistedLease> LeaseFromRecord(LeaseId id,
                                               absl::string_view bytes) {
  HOIST_ASSIGN_OR_RETURN(const auto in,
                         Parse<pb::PersistedLease>(bytes, "lease"));
  PersistedLease lease;
  lease.id = id;
  lease.session = SessionId(in.session_id());
  lease.copy = CopyRef{{ModelId(in.model_id()), GroupIndex(in.group())},
                       {OnDevice(DeviceIndex(in.device())), false, in.apart()}};
  return lease;
}

std::string ToRecord(const PersistedArena& arena) {
  pb::PersistedArena out;
  out.set_session_id(arena.session.number());
  out.set_device(arena.device.number());
  out.mutable_offset_bytes()->Assign(arena.offsets.begin(),
                                     arena.offsets.end());
  return out.SerializeAsString();
}

absl::StatusOr<PersistedArena> ArenaFromRecord(ArenaId id,
                                               absl::string_view bytes) {
  HOIST_ASSIGN_OR_RETURN(const auto in,
                         Parse<pb::PersistedArena>(bytes, "arena"));
  if (in.offset_bytes().empty()) return Malformed("arena");
  return PersistedArena{id, SessionId(in.session_id()),
                        DeviceIndex(in.device()),
                        std::vector<uint64_t>(in.offset_bytes().begin(),
                                              in.offset_bytes().end())};
}

std::string ToRecord(const PlanRecord& plan) {
  const PlanGrant& grant = plan.grant;
  pb::PersistedPlan out;
  out.set_session_id(plan.session.number());
  out.set_model_id(grant.model.number());
  out.set_device(grant.device.number());
  out.set_budget_bytes(grant.budget_bytes);
  for (const PlannedGroup& planned : grant.groups) {
    pb::PersistedPlan::PlannedGroup* to = out.add_groups();
    to->set_group(planned.group.number());
    to->set_resident(planned.resident);
    to->set_slot_offset_bytes(planned.slot.offset);
    to->set_slot_bytes(planned.slot.bytes);
    to->set_image_bytes(planned.image_bytes);
  }
  out.mutable_lane_order()->Assign(grant.lane_order.begin(),
                                   grant.lane_order.end());
  out.set_ring_offset_bytes(grant.ring_offset);
  out.set_ring_bytes(grant.ring_bytes);
  out.set_resident_bytes(grant.resident_bytes);
  out.set_streamed_bytes(grant.streamed_bytes);
  out.set_lead(grant.lead);
  out.set_gives_way(grant.gives_way);
  out.set_takes_all(grant.takes_all);
  ShareToProto(plan.share, out.mutable_share());
  out.set_stage_deadline_ms(
      static_cast<uint64_t>(absl::ToInt64Milliseconds(plan.stage_deadline)));
  return out.SerializeAsString();
}

absl::StatusOr<PlanRecord> PlanFromRecord(PlanId id, absl::string_view bytes) {
  HOIST_ASSIGN_OR_RETURN(const auto in,
                         Parse<pb::PersistedPlan>(bytes, "plan"));
  PlanRecord plan;
  plan.session = SessionId(in.session_id());
  PlanGrant& grant = plan.grant;
  grant.id = id;
  grant.model = ModelId(in.model_id());
  grant.device = DeviceIndex(in.device());
  grant.budget_bytes = in.budget_bytes();
  for (const pb::PersistedPlan::PlannedGroup& from : in.groups()) {
    PlannedGroup planned;
    planned.group = GroupIndex(from.group());
    planned.resident = from.resident();
    planned.slot = {from.slot_offset_bytes(), from.slot_bytes()};
    planned.image_bytes = from.image_bytes();
    grant.groups.push_back(planned);
  }
  grant.lane_order.assign(in.lane_order().begin(), in.lane_order().end());
  grant.ring_offset = in.ring_offset_bytes();
  grant.ring_bytes = in.ring_bytes();
  grant.resident_bytes = in.resident_bytes();
  grant.streamed_bytes = in.streamed_bytes();
  grant.lead = in.lead();
  grant.gives_way = in.gives_way();
  grant.takes_all = in.takes_all();
  HOIST_ASSIGN_OR_RETURN(plan.share, ShareFromProto(in.share()));
  plan.stage_deadline = DeadlineFromProto(in.stage_deadline_ms());
  return plan;
}

std::string ToRecord(const PersistedPin& pin) {
  const TierAt at = pin.copy.place.at;
  pb::PersistedPin out;
  out.set_model_id(pin.copy.key.model.number());
  out.set_group(pin.copy.key.group.number());
  out.set_on_host(at.tier == Tier::kHost);
  if (at.tier == Tier::kDevice) out.set_device(at.device.number());
  return out.SerializeAsString();
}

absl::StatusOr<PersistedPin> PinFromRecord(absl::string_view bytes) {
  HOIST_ASSIGN_OR_RETURN(const auto in, Parse<pb::PersistedPin>(bytes, "pin"));
  const TierAt at =
      in.on_host() ? OnHost() : OnDevice(DeviceIndex(in.device()));
  PersistedPin pin;
  pin.copy = {{ModelId(in.model_id()), GroupIndex(in.group())}, {at, false}};
  return pin;
}

std::string ToRecord(const LoadCap& cap) {
  pb::PersistedLoadCap out;
  out.set_bytes_per_second(cap.set);
  out.set_configured_bytes_per_second(cap.configured);
  return out.SerializeAsString();
}

absl::StatusOr<LoadCap> LoadCapFromRecord(absl::string_view bytes) {
  HOIST_ASSIGN_OR_RETURN(const auto in,
                         Parse<pb::PersistedLoadCap>(bytes, "cap"));
  return LoadCap{in.bytes_per_second(), in.configured_bytes_per_second()};
}

}  // namespace hoistd
