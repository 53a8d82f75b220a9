#include "daemon/core/node_restore.h"

#include <algorithm>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "daemon/base/status.h"

namespace hoistd {
namespace {

// `what`: the conflicting record of the last hoistd.
absl::Status Disagrees(const std::string& what) {
  return absl::InvalidArgumentError(
      absl::StrCat(what, " does not agree with what else was kept"));
}

}  // namespace

void NodeRestore::SkipIds(uint64_t last) {
  node_.ids_.Skip(last);
  for (uint32_t d = 0; d < node_.space_.devices(); ++d) {
    node_.space_.device(DeviceIndex(d)).SkipIds(last);
  }
}

void NodeRestore::HadGroups(const User& owner, const std::string& model,
                            uint32_t groups) {
  node_.registry_.HadGroups(owner, model, groups);
}

absl::Status NodeRestore::CheckDevice(DeviceIndex device) const {
  if (device.number() < node_.devices_.size()) return absl::OkStatus();
  return Disagrees(absl::StrCat("device ", device.number()));
}

absl::Status NodeRestore::AddModel(ModelId id,
                                   std::shared_ptr<const ModelSpec> spec,
                                   User owner, Readers readers) {
  if (id == ModelId() || node_.copies_.FindModel(id) != nullptr ||
      node_.models_.Named(owner, spec->name) != nullptr) {
    return Disagrees(absl::StrCat("model ", spec->name));
  }
  node_.models_.Add(id, std::move(spec), owner, readers);
  SkipIds(id.number());
  return absl::OkStatus();
}

absl::Status NodeRestore::CheckModel(ModelId id, User owner,
                                     const std::string& name) const {
  const ModelEntry* model = node_.copies_.FindModel(id);
  if (model != nullptr && model == node_.models_.Named(owner, name)) {
    return absl::OkStatus();
  }
  return Disagrees(absl::StrCat("model ", name));
}

absl::Status NodeRestore::CheckGroup(const PersistedCopy& kept) const {
  const GroupEntry* group = node_.copies_.FindGroup(*kept.key);
  if (group != nullptr && group->group->name == kept.group) {
    return absl::OkStatus();
  }
  return Disagrees(absl::StrCat("a copy of group ", kept.group));
}

absl::Status NodeRestore::AddSlab(const PersistedSlab& kept,
                                  const SlabShare& share) {
  HOIST_RETURN_IF_ERROR(CheckDevice(kept.device));
  Zone zone;
  zone.readers = node_.models_.ReadersOf(kept.reader);
  zone.backing = kept.slab.backing;
  zone.apart = kept.slab.apart;
  zone.writable = kept.slab.writable;
  return node_.space_.device(kept.device).Restore(kept.slab, zone, share);
}

absl::Status NodeRestore::AddCopy(const PersistedCopy& kept, absl::Time now) {
  HOIST_RETURN_IF_ERROR(CheckDevice(kept.device));
  const DeviceSpace& space = node_.space_.device(kept.device);
  const CopyRef ref = {
      kept.key.value(),
      {OnDevice(kept.device), false, space.IsApart(kept.offset)}};
  HOIST_RETURN_IF_ERROR(CheckGroup(kept));
  if (node_.copies_.At(ref).usable()) {
    return Disagrees(absl::StrCat("a copy of group ", kept.group));
  }
  const OwnerId owner = node_.copies_.NewOwner(ref);
  HOIST_RETURN_IF_ERROR(node_.space_.device(kept.device)
                            .RestoreAt(kept.offset,
                                       node_.copies_.SpaceOf(ref.key),
                                       node_.space_.ZoneOf(ref), owner));
  Copy& copy = node_.copies_.At(ref);
  node_.copies_.Apply(copy, ResidencyEvent::kAdopt);
  copy.owner = owner;
  copy.offset = kept.offset;
  copy.last_use = now;
  copy.damaged = kept.damaged;
  node_.space_.Weigh(ref, copy);
  return absl::OkStatus();
}

absl::Status NodeRestore::AddSession(SessionId id, const OpenSessionArgs& args,
                                     absl::Time now) {
  if (id == SessionId() || node_.tenure_.sessions().Find(id) != nullptr) {
    return Disagrees(absl::StrCat("session ", id.number()));
  }
  node_.tenure_.sessions().Open(id, args, now);
  node_.space_.slabs().AddSession(id, args.peer.uid, args.closes_slabs);
  SkipIds(id.number());
  // All models that it may read, until it says which.
  std::vector<ModelId> readable;
  for (const auto& [model, entry] : node_.copies_.models()) {
    if (ModelBook::MayRead(args.peer, *entry->model)) readable.push_back(model);
  }
  node_.tenure_.sessions().Assume(id, readable);
  // Likewise all slabs, until it lists its own.
  const uint64_t own = node_.models_.ReadersOf(args.peer.uid);
  for (uint32_t d = 0; d < node_.space_.devices(); ++d) {
    for (const auto& [zone, slab, owner] :
         node_.space_.device(DeviceIndex(d)).AllSlabs()) {
      const bool may_read = zone.readers == own ||
                            zone.readers == Zone::kEveryone || args.peer.admin;
      if (!may_read || zone.writable) continue;  // Arenas name their owners.
      node_.space_.slabs().MayBeOpen(id, DeviceIndex(d), slab);
    }
  }
  return absl::OkStatus();
}

absl::Status NodeRestore::AddLease(LeaseId id, SessionId session,
                                   const CopyRef& ref) {
  const SessionBook::Session* holder = node_.tenure_.sessions().Find(session);
  if (holder == nullptr) {
    return absl::FailedPreconditionError(
        absl::StrCat("session ", session.number(),
                     ", which has a lease, cannot go on: it came over gRPC, or "
                     "from an older libhoist"));
  }
  const GroupEntry* group = node_.copies_.FindGroup(ref.key);
  if (group == nullptr || ref.place.shared ||
      ref.place.at.tier != Tier::kDevice ||
      node_.tenure_.sessions().FindLease(id) != nullptr || id == LeaseId()) {
    return Disagrees(absl::StrCat("lease ", id.number()));
  }
  HOIST_RETURN_IF_ERROR(CheckDevice(ref.place.at.device));
  const Model& model = *node_.copies_.FindModel(ref.key.model)->model;
  Copy& copy = node_.copies_.At(ref);
  if (!copy.usable() || !ModelBook::MayRead(holder->args.peer, model)) {
    return Disagrees(absl::StrCat("lease ", id.number()));
  }
  const uint64_t bytes = node_.copies_.SpaceOf(ref.key);
  node_.tenure_.sessions().Claim(session, ref, bytes);
  node_.space_.UseSlabs(session, ref.place.at.device, copy.offset, bytes);
  node_.tenure_.sessions().Grant(session, id, ref);
  ++copy.leases;
  node_.space_.Weigh(ref, copy);
  SkipIds(id.number());
  return absl::OkStatus();
}

// What the streamer and the books rely on.
absl::Status NodeRestore::CheckPlan(const PlanGrant& grant) const {
  const ModelEntry* model = node_.copies_.FindModel(grant.model);
  if (model == nullptr || grant.id == PlanId() || grant.groups.empty() ||
      node_.tenure_.plans().Find(grant.id) != nullptr) {
    return Disagrees(absl::StrCat("plan ", grant.id.number()));
  }
  std::set<GroupIndex> named;
  uint32_t streamed = 0;
  for (const PlannedGroup& planned : grant.groups) {
    const bool right =
        planned.group.number() < model->groups.size() &&
        named.insert(planned.group).second &&
        model->groups[planned.group.number()].group->image_bytes ==
            planned.image_bytes &&
        (planned.resident ||
         (planned.slot.bytes >= planned.image_bytes &&
          planned.slot.bytes <= grant.ring_bytes &&
          planned.slot.offset <= grant.ring_bytes - planned.slot.bytes));
    if (!right) return Disagrees(absl::StrCat("plan ", grant.id.number()));
    if (!planned.resident) ++streamed;
  }
  const bool in_range =
      std::all_of(grant.lane_order.begin(), grant.lane_order.end(),
                  [&](uint32_t rank) { return rank < streamed; });
  if (in_range && grant.lane_order.empty() == (streamed == 0)) {
    return absl::OkStatus();
  }
  return Disagrees(absl::StrCat("plan ", grant.id.number()));
}

absl::Status NodeRestore::AddPlan(SessionId session, const PlanGrant& grant) {
  const SessionBook::Session* holder = node_.tenure_.sessions().Find(session);
  if (holder == nullptr) {
    return absl::FailedPreconditionError(absl::StrCat(
        "session ", session.number(), ", which has a plan, cannot go on"));
  }
  HOIST_RETURN_IF_ERROR(CheckDevice(grant.device));
  HOIST_RETURN_IF_ERROR(CheckPlan(grant));
  StandingPlan plan;
  plan.session = session;
  plan.uid = holder->uid();
  plan.grant = grant;
  plan.grant.new_slabs.clear();
  plan.ring_owner = node_.copies_.NewOwner();
  plan.zone = node_.space_.ZoneOf(Tenure::RingRef(grant));
  plan.given = true;
  if (grant.ring_bytes > 0) {
    HOIST_RETURN_IF_ERROR(node_.space_.device(grant.device)
                              .RestoreAt(grant.ring_offset, grant.ring_bytes,
                                         plan.zone, plan.ring_owner));
    node_.space_.UseSlabs(session, grant.device, grant.ring_offset,
                          grant.ring_bytes);
  }
  node_.tenure_.plans().Restore(std::move(plan));
  std::vector<GroupIndex> order;
  for (const PlannedGroup& group : grant.groups) order.push_back(group.group);
  node_.tenure_.orders().Set(session, grant.model, std::move(order));
  SkipIds(grant.id.number());
  return absl::OkStatus();
}

absl::Status NodeRestore::AddArena(const PersistedArena& kept) {
  HOIST_RETURN_IF_ERROR(node_.arenas_.Restore(kept));
  node_.ids_.Skip(kept.id.number());
  return absl::OkStatus();
}

void NodeRestore::NoMoreArenas() {
  for (uint32_t d = 0; d < node_.space_.devices(); ++d) {
    node_.space_.device(DeviceIndex(d)).ZeroFree();
  }
}

bool NodeRestore::AddPin(const CopyRef& ref) {
  Copy* copy = node_.copies_.Find(ref);
  if (copy == nullptr || !copy->usable()) return false;
  // A pin that had to wait for its copy waits again.
  if (!copy->pinned && !node_.space_.CheckReservations(ref).ok()) return false;
  copy->pinned = true;  // Already in the book.
  node_.space_.Weigh(ref, *copy);
  return true;
}

}  // namespace hoistd
