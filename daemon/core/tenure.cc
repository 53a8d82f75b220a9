#include "daemon/core/tenure.h"

#include <algorithm>
#include <utility>

#include "absl/strings/str_cat.h"
#include "daemon/base/check.h"
#include "daemon/base/status.h"

namespace hoistd {
namespace {

absl::Status NoSuchSession() {
  return absl::NotFoundError("the session is closed; connect again");
}

// The same text whether the group is absent or hidden from the caller.
absl::Status NoSuchGroup() {
  return absl::NotFoundError(
      "no such model or group; it may have been forgotten: register again");
}

}  // namespace

Tenure::Tenure(const NodeOptions& options,
               const std::vector<DeviceInfo>& devices, const DeviceNames& names,
               CopyTable& copies, const ModelBook& models, QuotaBook& quota,
               Space& space, PersistedLog& persisted, Counters& counters)
    : devices_(devices),
      names_(names),
      copies_(copies),
      models_(models),
      quota_(quota),
      space_(space),
      persisted_(persisted),
      counters_(counters),
      sessions_(quota),
      plans_(space.promises(), copies, sessions_, quota),
      reclaim_(*this,
               PlanOffers(options, *this, devices, names, copies, models, quota,
                          space),
               counters),
      headroom_(names_, space, reclaim_) {}

absl::Status Tenure::DrainsNow() {
  return absl::UnavailableError(
      "hoistd is draining: sessions go on with the models that they use, and "
      "begin with no others; wait for `hoistctl drain --resume`");
}

const Peer* Tenure::PeerOf(SessionId id) const {
  const SessionBook::Session* session = sessions_.Find(id);
  return session == nullptr ? nullptr : &session->args.peer;
}

absl::StatusOr<ModelPtr> Tenure::Find(SessionId session,
                                      const std::string& name) {
  const Peer* peer = PeerOf(session);
  if (peer == nullptr) return absl::NotFoundError("the session is closed");
  HOIST_ASSIGN_OR_RETURN(ModelPtr found, models_.Find(*peer, name));
  if (draining_ && !sessions_.Uses(session, found->id)) return DrainsNow();
  const ModelEntry& entry = *copies_.FindModel(found->id);
  if (const uint32_t missing = entry.missing(); missing > 0) {
    return absl::DataLossError(absl::StrCat(
        "model ", name, " is not whole: ", missing, " of its ",
        entry.groups.size(),
        " groups are gone, since no disk had them when hoistd ended; publish "
        "it again, of which only what is missing is taken, or have an admin "
        "forget it (`hoistctl evict --forget`)"));
  }
  sessions_.Use(session, found->id);
  return found;
}

absl::StatusOr<ModelPtr> Tenure::Find(const Peer& asker,
                                      const std::string& name) const {
  return models_.Find(asker, name);
}

absl::StatusOr<ModelPtr> Tenure::FindByContent(SessionId session,
                                               const Content& content) {
  const Peer* peer = PeerOf(session);
  if (peer == nullptr) return absl::NotFoundError("the session is closed");
  ModelPtr same = models_.Shared(peer->uid, content, /*published=*/true);
  if (same == nullptr) {
    return absl::NotFoundError(
        "no published model of this content that this user may read");
  }
  if (draining_ && !sessions_.Uses(session, same->id)) return DrainsNow();
  sessions_.Use(session, same->id);
  return same;
}

absl::StatusOr<ModelPtr> Tenure::Find(SessionId session, ModelId id) const {
  const Peer* peer = PeerOf(session);
  if (peer == nullptr) return absl::NotFoundError("the session is closed");
  return models_.Find(*peer, id);
}

absl::Status Tenure::CheckBring(const BringArgs& args, bool checked) const {
  const GroupEntry* group = copies_.FindGroup(args.copy.key);
  if (group == nullptr) {
    return NoSuchGroup();
  }
  if (args.lease) {
    // Before any text about the model.
    const Peer* peer = PeerOf(args.session);
    if (peer == nullptr) return NoSuchSession();
    const Model& model = *copies_.FindModel(args.copy.key.model)->model;
    if (!ModelBook::MayRead(*peer, model)) return NoSuchGroup();
    HOIST_RETURN_IF_ERROR(models_.CheckShares(*peer, model));
  }
  const TierAt at = args.copy.place.at;
  if (at.tier == Tier::kDevice && (at.device.number() >= devices_.size() ||
                                   devices_[at.device.number()].arenas_alone)) {
    return absl::InvalidArgumentError(absl::StrCat(
        "no device ", at.device.number(), "; this node has ", names_.count()));
  }
  if (at.tier == Tier::kDisk) {
    return absl::InvalidArgumentError(
        "nothing is brought up to the disk; name the host or a device");
  }
  // Leased copies stay valid, and users of the model continue until it ends: a
  // drain waits for them.
  if (draining_ && !args.hold.has_value() && !args.repair.has_value() &&
      !sessions_.Uses(args.session, args.copy.key.model)) {
    return absl::UnavailableError(
        "hoistd is draining and stages for nobody new; wait for `hoistctl "
        "drain --resume`");
  }
  const auto copy = group->copies.find(args.copy.place);
  const bool usable = copy != group->copies.end() && copy->second.usable();
  if (!usable && !group->lost.ok()) return group->lost;
  if (usable && copy->second.damaged && !checked) {
    return absl::DataLossError(absl::StrCat(
        copies_.NameOf(args.copy.key), " is damaged ", names_.On(at),
        " and leased, so that it cannot be brought anew; end the workers that "
        "have it, or have an admin run `hoistctl check --repair`"));
  }
  const uint64_t bytes = SpaceOf(*group->group);
  const auto fits = [&](TierAt tier) -> absl::Status {
    if (bytes <= space_.CapacityOf(tier)) return absl::OkStatus();
    return absl::ResourceExhaustedError(absl::StrCat(
        copies_.NameOf(args.copy.key), " takes ", HumanBytes(bytes),
        " and all of ", names_.Of(tier), " is ",
        HumanBytes(space_.CapacityOf(tier)), "; raise ", names_.KeyOf(tier),
        " in hoistd.toml or use smaller groups"));
  };
  if (at.tier == Tier::kDevice) HOIST_RETURN_IF_ERROR(fits(at));
  if (!usable) HOIST_RETURN_IF_ERROR(fits(OnHost()));
  if (!args.lease) return absl::OkStatus();
  HOIST_RETURN_IF_ERROR(CheckBudget(args.session, args.copy));
  return sessions_.CheckClaim(args.session, args.copy, bytes);
}

absl::Status Tenure::CheckBudget(SessionId id, const CopyRef& copy) const {
  const SessionBook::Session& session = sessions_.At(id);
  const uint64_t budget = session.args.device_budget_bytes;
  if (budget == 0 || session.claims.contains(copy)) return absl::OkStatus();
  // The budget is of device memory.
  if (names_.IsInPlace(copy.place.at)) return absl::OkStatus();
  const DeviceIndex device = copy.place.at.device;
  const std::set<CopyRef> own = plans_.OwnCopies(id, device, std::nullopt);
  if (own.contains(copy)) return absl::OkStatus();  // A plan counts it.
  const uint64_t held = offers().BytesOf(own, std::nullopt) +
                        plans_.RingBytes({.device = device, .session = id});
  const uint64_t bytes = copies_.SpaceOf(copy.key);
  if (held + bytes <= budget) return absl::OkStatus();
  return absl::ResourceExhaustedError(absl::StrCat(
      copies_.NameOf(copy.key), " needs ", HumanBytes(bytes), " ",
      names_.On(copy.place.at), "; this session may lease ", HumanBytes(budget),
      " at once and holds ", HumanBytes(held),
      bytes > budget ? "; connect with a device budget of at least "
                     : "; release a lease, or connect with a budget of ",
      HumanBytes(bytes > budget ? bytes : held + bytes)));
}

absl::Status Tenure::CheckRead(SessionId session, GroupKey key,
                               uint64_t memfd_bytes) const {
  HOIST_ASSIGN_OR_RETURN(const ModelPtr model, Find(session, key.model));
  const GroupEntry* group = copies_.FindGroup(key);
  if (group == nullptr) {
    return absl::NotFoundError(
        absl::StrCat("model ", model->spec->name, " has no group ",
                     key.group.number(), "; describe it again"));
  }
  if (memfd_bytes == group->group->image_bytes) return absl::OkStatus();
  return absl::InvalidArgumentError(
      absl::StrCat("the memfd for ", copies_.NameOf(key), " has ", memfd_bytes,
                   " bytes; its image has ", group->group->image_bytes));
}

// Whether the waiter may open the copy's slabs. A user holds whole slabs, which
// nobody gets back from a stopped worker. So scattered leases are held to the
// quota by their slabs, rounded up by one slab.
absl::Status Tenure::MayOpen(const Waiter& waiter, const CopyRef& ref,
                             const Copy& copy, absl::Time now) {
  if (!waiter.lease) return absl::OkStatus();
  const DeviceIndex device = ref.place.at.device;
  std::vector<SlabSpec> slabs;  // Unknown while the copy is absent.
  if (copy.usable()) {
    slabs =
        space_.device(device).SlabsOf(copy.offset, copies_.SpaceOf(ref.key));
  }
  if (absl::Status s = CheckOpen(waiter.session, device, slabs, now); !s.ok()) {
    return s;
  }
  const User uid = sessions_.At(waiter.session).uid();
  const uint64_t limit = quota_.DeviceLimitOf(uid, device);
  if (limit == QuotaLimits::kNone || plans_.Promised(waiter.session, ref)) {
    return absl::OkStatus();
  }
  const SlabBook::InUse with = space_.slabs().UsedBy(uid, device, slabs);
  if (with.bytes - with.largest <= limit ||
      with.bytes == space_.slabs().UsedBy(uid, device, {}).bytes) {
    return absl::OkStatus();
  }
  return absl::ResourceExhaustedError(absl::StrCat(
      ToString(uid), " would hold ", HumanBytes(with.bytes), " of ",
      names_.Of(OnDevice(device)), " in slabs that its leases lie in, and ",
      HumanBytes(limit),
      " are what it may: release leases, or raise quota.device_bytes in "
      "hoistd.toml"));
}

LeaseGrant Tenure::Grant(LeaseId id, const Waiter& waiter, const CopyRef& ref,
                         Copy& copy, absl::Time now) {
  const DeviceIndex device = ref.place.at.device;
  LeaseGrant grant;
  grant.id = id;
  grant.key = ref.key;
  grant.device = device;
  grant.offset = copy.offset;
  grant.bytes = copies_.FindGroup(ref.key)->group->image_bytes;
  grant.was_resident = !waiter.waited;
  grant.apart = ref.place.apart;
  const uint64_t space = copies_.SpaceOf(ref.key);
  grant.new_slabs = space_.UseSlabs(waiter.session, device, copy.offset, space);
  sessions_.Grant(waiter.session, grant.id, ref);
  KeepLease(grant.id, waiter.session, ref, /*there=*/true);
  ++copy.leases;
  space_.Weigh(ref, copy);
  copy.last_use = now;
  orders_.Staged(waiter.session, ref.key, now);
  return grant;
}

void Tenure::KeepLease(LeaseId id, SessionId session, const CopyRef& ref,
                       bool there) {
  if (space_.ZoneOf(ref).backing == Backing::kIpc) return;
  persisted_.Add(PersistedLease{
      id, session, there ? std::optional<CopyRef>(ref) : std::nullopt});
}

// Whether the session may have these slabs open; none: slabs not known yet.
// Idle slabs count for their user: workers that keep them open and do not
// answer take at most one user's quota from others. Above it, some must be
// closed first.
absl::Status Tenure::CheckOpen(SessionId id, DeviceIndex device,
                               const std::vector<SlabSpec>& used,
                               absl::Time now) {
  const User uid = sessions_.At(id).uid();
  const uint64_t limit = quota_.DeviceLimitOf(uid, device);
  const bool has_all =
      !used.empty() &&
      std::all_of(used.begin(), used.end(), [&](const SlabSpec& slab) {
        return space_.slabs().HasOpen(id, device, slab.id);
      });
  if (limit == QuotaLimits::kNone || has_all) return absl::OkStatus();
  const std::vector<SlabBook::Idle> idle =
      space_.slabs().IdleOf(uid, device, used);
  uint64_t holds = quota_.Of(uid).On(device);
  uint64_t kept = 0;
  for (const SlabBook::Idle& slab : idle) {
    holds += slab.bytes;
    if (slab.kept) kept += slab.bytes;
  }
  if (holds <= limit) return absl::OkStatus();
  const uint64_t over = holds - limit;
  uint64_t asked = 0;
  std::vector<SlabId> unneeded;
  for (const SlabBook::Idle& slab : idle) {
    if (slab.kept || asked >= over) continue;
    unneeded.push_back(slab.slab);
    asked += slab.bytes;
  }
  space_.AskToClose(device, unneeded, uid, now);
  if (asked >= over) return Space::WaitsForIdle();
  return absl::ResourceExhaustedError(absl::StrCat(
      "idle workers of the same user hold ", HumanBytes(kept),
      " of device memory open and do not answer; it counts against "
      "quota.device_bytes in hoistd.toml: end them, or let them run"));
}

CopyRef Tenure::Release(LeaseId id, absl::Time now) {
  const SessionBook::Lease lease = sessions_.EndLease(id);
  KeepLease(id, lease.session, lease.copy, /*there=*/false);
  Copy& copy = copies_.At(lease.copy);
  HOIST_CHECK(copy.leases > 0);
  space_.LeaveSlabs(lease.session, lease.copy.place.at.device, copy.offset,
                    copies_.SpaceOf(lease.copy.key));
  copy.last_use = now;
  if (--copy.leases == 0) space_.Changed();
  space_.Weigh(lease.copy, copy);
  return lease.copy;
}

absl::Status Tenure::Announce(SessionId session, ModelId model,
                              std::vector<GroupIndex> order) {
  HOIST_ASSIGN_OR_RETURN(ModelPtr found, Find(session, model));
  for (const GroupIndex group : order) {
    if (group.number() >= found->spec->groups.size()) {
      return absl::InvalidArgumentError(
          absl::StrCat("the order names group ", group.number(), "; model ",
                       found->spec->name, " has ", found->spec->groups.size()));
    }
  }
  if (order.empty()) {
    DoneWith(session, model);
  } else {
    sessions_.Use(session, model);
  }
  orders_.Set(session, model, std::move(order));
  return absl::OkStatus();
}

absl::StatusOr<std::vector<GroupHeat>> Tenure::ReportHeat(
    SessionId session, const HeatArgs& args) {
  HOIST_ASSIGN_OR_RETURN(const ModelPtr model, Find(session, args.model));
  if (args.device.number() >= names_.count()) {
    return absl::NotFoundError(absl::StrCat("no device ", args.device.number(),
                                            "; this node has ",
                                            names_.count()));
  }
  const size_t groups = model->spec->groups.size();
  for (const GroupHeat& one : args.heat) {
    if (one.group.number() >= groups) {
      return absl::OutOfRangeError(
          absl::StrCat("model ", model->spec->name, " has no group ",
                       one.group.number(), "; it has ", groups));
    }
  }
  heat_.Report(args.model, groups, args.heat);
  counters_.touched_hot_bytes += args.touched_hot_bytes;
  counters_.touched_cold_bytes += args.touched_cold_bytes;
  return heat_.Of(args.model);
}

}  // namespace hoistd
