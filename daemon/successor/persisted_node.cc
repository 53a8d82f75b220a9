#include "daemon/successor/persisted_node.h"

#include <algorithm>
#include <set>
#include <tuple>

#include "daemon/base/status.h"
#include "daemon/model/published_group.h"
#include "daemon/successor/persisted_keys.h"

namespace hoistd {
namespace {

// The id in a key of this kind.
template <typename IdType>
IdType IdOf(PersistedKey key) {
  return IdType(key.id);
}

// Admins' settings. False: another kind.
absl::StatusOr<bool> AddWord(PersistedKey key, const std::string& value,
                             FoundNode& found) {
  if (key.kind == KeyOf(PersistedKind::kPin).kind) {
    HOIST_ASSIGN_OR_RETURN(const PersistedPin pin, PinFromRecord(value));
    found.pins[key.id] = pin.copy;
    return true;
  }
  if (key.kind == KeyOf(PersistedKind::kLoadCap).kind) {
    HOIST_ASSIGN_OR_RETURN(
        found.load_caps[DeviceIndex(static_cast<uint32_t>(key.id))],
        LoadCapFromRecord(value));
    return true;
  }
  return false;
}

absl::Status Add(PersistedKey key, const std::string& value, FoundNode& found) {
  switch (static_cast<PersistedKind>(key.kind)) {
    case PersistedKind::kInstance: {
      HOIST_ASSIGN_OR_RETURN(found.instance, InstanceFromRecord(value));
      return absl::OkStatus();
    }
    case PersistedKind::kModel: {
      HOIST_ASSIGN_OR_RETURN(found.models[IdOf<ModelId>(key)],
                             ModelFromRecord(value));
      return absl::OkStatus();
    }
    case PersistedKind::kArenaSlab:
    case PersistedKind::kSlab: {
      HOIST_ASSIGN_OR_RETURN(PersistedSlab slab, SlabFromRecord(value));
      if (SlabKey(slab.device, slab.slab) != key) break;
      const auto kept = found.descriptors.find(key);
      if (kept == found.descriptors.end()) break;
      slab.keep_fd = kept->second.get();
      found.slabs.push_back(slab);
      return absl::OkStatus();
    }
    case PersistedKind::kDeviceCopy: {
      HOIST_ASSIGN_OR_RETURN(PersistedCopy copy, CopyFromRecord(value));
      copy.device = DeviceIndex(static_cast<uint32_t>(key.id >> kDeviceShift));
      copy.offset = key.id & ((uint64_t{1} << kDeviceShift) - 1);
      found.copies.push_back(std::move(copy));
      return absl::OkStatus();
    }
    case PersistedKind::kSession: {
      HOIST_ASSIGN_OR_RETURN(PersistedSession session,
                             SessionFromRecord(IdOf<SessionId>(key), value));
      const auto kept = found.descriptors.find(key);
      if (kept == found.descriptors.end()) break;
      session.args->socket =
          std::make_shared<hoist::UniqueFd>(std::move(kept->second));
      found.sessions.push_back(std::move(session));
      return absl::OkStatus();
    }
    case PersistedKind::kLease: {
      HOIST_ASSIGN_OR_RETURN(const PersistedLease lease,
                             LeaseFromRecord(IdOf<LeaseId>(key), value));
      found.leases.push_back(lease);
      return absl::OkStatus();
    }
    case PersistedKind::kPlan: {
      HOIST_ASSIGN_OR_RETURN(PlanRecord plan,
                             PlanFromRecord(IdOf<PlanId>(key), value));
      found.plans.push_back(std::move(plan));
      return absl::OkStatus();
    }
    case PersistedKind::kArena: {
      HOIST_ASSIGN_OR_RETURN(PersistedArena arena,
                             ArenaFromRecord(IdOf<ArenaId>(key), value));
      found.arenas.push_back(std::move(arena));
      return absl::OkStatus();
    }
    default:  // Or of another book.
      return AddWord(key, value, found).status();
  }
  return absl::InvalidArgumentError(
      "what the last hoistd kept of devices makes no sense");
}

std::vector<uint64_t> DescriptorsOf(const ModelRecord& record) {
  std::vector<uint64_t> numbers = record.files;
  if (record.spec != 0) numbers.push_back(record.spec);
  return numbers;
}

}  // namespace

absl::StatusOr<FoundNode> FindNode(
    const std::map<PersistedKey, std::string>& records,
    std::map<PersistedKey, hoist::UniqueFd> descriptors) {
  FoundNode found;
  found.descriptors = std::move(descriptors);
  for (const auto& [key, value] : records) {
    HOIST_RETURN_IF_ERROR(Add(key, value, found));
  }
  const auto place = [](const PersistedSlab& slab) {
    return std::tuple(slab.device, slab.slab.offset);
  };
  std::sort(found.slabs.begin(), found.slabs.end(),
            [&](const PersistedSlab& a, const PersistedSlab& b) {
              return place(a) < place(b);
            });
  return found;
}

absl::Status WriteModel(const PersistedModel& model, Keep& keep) {
  const PersistedKey key = KeyOf(PersistedKind::kModel, model.id.number());
  if (model.model != nullptr) {
    ModelRecord record;
    record.owner = model.model->owner;
    record.readers = model.model->readers;
    const ModelSpec& spec = *model.model->spec;
    record.name = spec.name;
    for (uint32_t g = 0; g < spec.groups.size(); ++g) {
      if (IsMissing(*spec.groups[g])) record.missing_groups.push_back(g);
    }
    return keep.Write(key, ToRecord(record));
  }
  const std::optional<std::string> old = keep.Read(key);
  HOIST_RETURN_IF_ERROR(keep.Erase(key));
  if (!old.has_value()) return absl::OkStatus();
  HOIST_ASSIGN_OR_RETURN(const ModelRecord record, ModelFromRecord(*old));
  const std::vector<uint64_t> numbers = DescriptorsOf(record);
  const std::set<uint64_t> gone(numbers.begin(), numbers.end());
  return keep.DropDescriptors([&](PersistedKey of) {
    return of.kind == KeyOf(PersistedKind::kModelFile).kind &&
           gone.contains(of.id);
  });
}

absl::Status WriteFiles(ModelId id, const ModelRecord& record,
                        const std::vector<int>& descriptors, Keep& keep) {
  const std::vector<uint64_t> numbers = DescriptorsOf(record);
  for (size_t i = 0; i < numbers.size(); ++i) {
    HOIST_RETURN_IF_ERROR(keep.KeepDescriptor(
        KeyOf(PersistedKind::kModelFile, numbers[i]), descriptors[i]));
  }
  return keep.Write(KeyOf(PersistedKind::kModel, id.number()),
                    ToRecord(record));
}

absl::Status WriteSlab(const PersistedSlab& slab, Keep& keep) {
  const PersistedKey key = SlabKey(slab.device, slab.slab);
  if (slab.keep_fd < 0) {
    HOIST_RETURN_IF_ERROR(keep.Erase(key));
    return keep.DropDescriptor(key);
  }
  HOIST_RETURN_IF_ERROR(keep.KeepDescriptor(key, slab.keep_fd));
  return keep.Write(key, ToRecord(slab));
}

absl::Status WriteCopy(const PersistedCopy& copy, Keep& keep) {
  const PersistedKey key = CopyKey(copy.device, copy.offset);
  if (!copy.key.has_value()) return keep.Erase(key);
  return keep.Write(key, ToRecord(copy));
}

absl::Status WriteSession(const PersistedSession& session, Keep& keep) {
  const PersistedKey key = KeyOf(PersistedKind::kSession, session.id.number());
  if (!session.args.has_value()) {
    HOIST_RETURN_IF_ERROR(keep.Erase(key));
    return keep.DropDescriptor(key);
  }
  HOIST_RETURN_IF_ERROR(keep.KeepDescriptor(key, session.args->socket->get()));
  return keep.Write(key, ToRecord(session));
}

absl::Status WriteLease(const PersistedLease& lease, Keep& keep) {
  const PersistedKey key = KeyOf(PersistedKind::kLease, lease.id.number());
  if (!lease.copy.has_value()) return keep.Erase(key);
  return keep.Write(key, ToRecord(lease));
}

absl::Status WriteArena(const PersistedArena& arena, Keep& keep) {
  const PersistedKey key = KeyOf(PersistedKind::kArena, arena.id.number());
  if (arena.offsets.empty()) return keep.Erase(key);
  return keep.Write(key, ToRecord(arena));
}

absl::Status WritePlan(const PlanRecord& plan, const LaneShare& lane,
                       Keep& keep) {
  const uint64_t id = plan.grant.id.number();
  if (lane.memory.valid()) {
    HOIST_RETURN_IF_ERROR(keep.KeepDescriptor(
        KeyOf(PersistedKind::kLaneMemory, id), lane.memory.get()));
    HOIST_RETURN_IF_ERROR(keep.KeepDescriptor(
        KeyOf(PersistedKind::kLaneWake, id), lane.wake.get()));
  }
  return keep.Write(KeyOf(PersistedKind::kPlan, id), ToRecord(plan));
}

absl::Status ErasePlan(PlanId plan, Keep& keep) {
  const uint64_t id = plan.number();
  HOIST_RETURN_IF_ERROR(keep.Erase(KeyOf(PersistedKind::kPlan, id)));
  HOIST_RETURN_IF_ERROR(
      keep.DropDescriptor(KeyOf(PersistedKind::kLaneMemory, id)));
  return keep.DropDescriptor(KeyOf(PersistedKind::kLaneWake, id));
}

absl::Status WritePin(uint64_t number, const CopyRef& copy, Keep& keep) {
  return keep.Write(KeyOf(PersistedKind::kPin, number),
                    ToRecord(PersistedPin{copy}));
}

absl::Status ErasePin(uint64_t number, Keep& keep) {
  return keep.Erase(KeyOf(PersistedKind::kPin, number));
}

absl::Status WriteShare(PlanId plan, const ShareOptions& share, Keep& keep) {
  const PersistedKey key = KeyOf(PersistedKind::kPlan, plan.number());
  const std::optional<std::string> old = keep.Read(key);
  if (!old.has_value()) return absl::NotFoundError("no such plan is kept");
  HOIST_ASSIGN_OR_RETURN(PlanRecord record, PlanFromRecord(plan, *old));
  record.share = share;
  return keep.Write(key, ToRecord(record));
}

absl::Status WriteLoadCap(DeviceIndex device, const LoadCap& cap, Keep& keep) {
  return keep.Write(KeyOf(PersistedKind::kLoadCap, device.number()),
                    ToRecord(cap));
}

absl::Status EraseLoadCap(DeviceIndex device, Keep& keep) {
  return keep.Erase(KeyOf(PersistedKind::kLoadCap, device.number()));
}

absl::Status DropNode(const std::map<PersistedKey, std::string>& records,
                      Keep& keep) {
  for (const auto& [key, value] : records) {
    if (IsOfNode(key)) HOIST_RETURN_IF_ERROR(keep.Erase(key));
  }
  return keep.DropDescriptors(IsOfNode);
}

}  // namespace hoistd
