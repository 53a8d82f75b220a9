// Staging, leases and order hints.
#include <algorithm>
#include <utility>

#include "absl/strings/str_cat.h"
#include "daemon/base/check.h"
#include "daemon/base/status.h"
#include "daemon/core/node.h"
#include "daemon/core/node_ending.h"

namespace hoistd {
namespace {

// How long a prefetch waits for space before it is forgotten.
constexpr absl::Duration kPrefetchPatience = absl::Seconds(60);

absl::Status NoSuchSession() {
  return absl::NotFoundError("the session is closed; connect again");
}

// The same words where there is none and where it is not the caller's to know.
absl::Status NoSuchGroup() {
  return absl::NotFoundError(
      "no such model or group; it may have been forgotten: register again");
}

}  // namespace

absl::Status Node::CheckBring(const BringArgs& args) {
  const GroupEntry* group = copies_.FindGroup(args.copy.key);
  if (group == nullptr) {
    return NoSuchGroup();
  }
  if (args.lease) {
    // Before anything is said about the model.
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
  // Passes of plans that stand go on, and what is leased stays right.
  if (draining_ && !args.hold.has_value() && !args.mend.has_value()) {
    return absl::UnavailableError("hoistd is draining and stages nothing");
  }
  const auto copy = group->copies.find(args.copy.place);
  const bool usable = copy != group->copies.end() && copy->second.usable();
  if (!usable && !group->lost.ok()) return group->lost;
  if (usable && copy->second.damaged && !checking_.contains(args.copy.key)) {
    return absl::DataLossError(absl::StrCat(
        NameOf(args.copy.key), " is damaged ", names_.On(at),
        " and leased, so that it cannot be brought anew; end the workers that "
        "have it, or have an admin run `hoistctl check --repair`"));
  }
  const uint64_t bytes = SpaceOf(*group->group);
  const auto fits = [&](TierAt tier) -> absl::Status {
    if (bytes <= CapacityOf(tier)) return absl::OkStatus();
    return absl::ResourceExhaustedError(absl::StrCat(
        NameOf(args.copy.key), " takes ", HumanBytes(bytes), " and all of ",
        names_.Of(tier), " is ", HumanBytes(CapacityOf(tier)), "; raise ",
        names_.KeyOf(tier), " in hoistd.toml or use smaller groups"));
  };
  if (at.tier == Tier::kDevice) HOIST_RETURN_IF_ERROR(fits(at));
  if (!usable) HOIST_RETURN_IF_ERROR(fits(OnHost()));
  if (!args.lease) return absl::OkStatus();
  HOIST_RETURN_IF_ERROR(CheckBudget(args.session, args.copy));
  return sessions_.CheckClaim(args.session, args.copy, bytes);
}

absl::Status Node::CheckBudget(SessionId id, const CopyRef& copy) const {
  const SessionBook::Session& session = sessions_.At(id);
  const uint64_t budget = session.args.device_budget_bytes;
  if (budget == 0 || session.claims.contains(copy)) return absl::OkStatus();
  // It is of device memory.
  if (names_.IsInPlace(copy.place.at)) return absl::OkStatus();
  const DeviceIndex device = copy.place.at.device;
  const std::set<CopyRef> own = plans_.OwnCopies(id, device, std::nullopt);
  if (own.contains(copy)) return absl::OkStatus();  // A plan counts it.
  const uint64_t held = BytesOf(own, std::nullopt) +
                        plans_.RingBytes({.device = device, .session = id});
  const uint64_t bytes = copies_.SpaceOf(copy.key);
  if (held + bytes <= budget) return absl::OkStatus();
  return absl::ResourceExhaustedError(absl::StrCat(
      NameOf(copy.key), " needs ", HumanBytes(bytes), " ",
      names_.On(copy.place.at), "; this session may lease ", HumanBytes(budget),
      " at once and holds ", HumanBytes(held),
      bytes > budget ? "; connect with a device budget of at least "
                     : "; release a lease, or connect with a budget of ",
      HumanBytes(bytes > budget ? bytes : held + bytes)));
}

void Node::Bring(const BringArgs& args, absl::Time now, Effects& effects) {
  if (args.lease) ++counters_.stages;
  if (Copy* copy = copies_.Find(args.copy)) DropDamaged(args.copy, *copy);
  if (absl::Status s = CheckBring(args); !s.ok()) {
    if (args.lease) ++counters_.stages_refused;
    effects.answers.push_back({args.request, std::move(s)});
    return;
  }
  if (sessions_.Find(args.session) != nullptr) {
    sessions_.Use(args.session, args.copy.key.model);
  }
  Waiter waiter;
  waiter.request = args.request;
  waiter.session = args.session;
  waiter.lease = args.lease;
  waiter.since = now;
  waiter.pin = args.pin;
  waiter.hold = args.hold;
  waiter.memfd = args.memfd;
  waiter.mend = args.mend;
  waiter.no_wait = args.deadline <= now;
  waiter.deadline = waiter.no_wait ? absl::InfiniteFuture() : args.deadline;
  if (args.lease) {
    sessions_.Claim(args.session, args.copy, copies_.SpaceOf(args.copy.key));
  }
  Copy& copy = copies_.At(args.copy);
  const bool keeps = args.lease || args.pin;
  if (copy.serves() && (!keeps || CheckBesidePlans(args.copy).ok()) &&
      MayOpen(waiter, args.copy, copy, now, effects).ok()) {
    Satisfy(waiter, args.copy, copy, now, effects);
    return;
  }
  waiter.waited = true;
  const Copy* host = copies_.Find({args.copy.key, kHost});
  waiter.nearest =
      host != nullptr && host->usable() ? Tier::kHost : Tier::kDisk;
  if (args.copy.place.at.tier == Tier::kDevice) {
    spaces_[args.copy.place.at.device.number()]->RetrySlabs();
  }
  const bool is_new = needs_.Find(args.copy) == nullptr;
  Need& need = NeedFor(args.copy, args.urgent, effects);
  if (is_new) need.spare = args.spare;
  AddWaiter(need, waiter);
  Tick(now, effects);
}

void Node::Satisfy(const Waiter& waiter, const CopyRef& ref, Copy& copy,
                   absl::Time now, Effects& effects) {
  if (waiter.hold.has_value()) {
    HoldArrived(*waiter.hold, ref, copy, effects);
    return;
  }
  if (waiter.mend.has_value()) {
    return StartMend({ref.key, *waiter.mend}, copy, now, effects);
  }
  if (waiter.memfd != nullptr)
    return StartRead(waiter, ref, copy, now, effects);
  if (waiter.pin) SetPinned(ref, copy, true);
  Answer answer = {waiter.request};
  if (waiter.lease) {
    if (!waiter.waited) ++counters_.stages_resident;
    counters_.stage_times[static_cast<size_t>(waiter.nearest)].Add(
        now - waiter.since);
    answer.lease = Grant(waiter, ref, copy, now);
  }
  effects.answers.push_back(std::move(answer));
}

absl::Status Node::CheckRead(SessionId session, GroupKey key,
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
      absl::StrCat("the memfd for ", NameOf(key), " has ", memfd_bytes,
                   " bytes; its image has ", group->group->image_bytes));
}

void Node::ReadImage(RequestId request, SessionId session, GroupKey key,
                     std::shared_ptr<hoist::UniqueFd> memfd,
                     uint64_t memfd_bytes, absl::Time deadline, absl::Time now,
                     Effects& effects) {
  if (absl::Status s = CheckRead(session, key, memfd_bytes); !s.ok()) {
    effects.answers.push_back({request, std::move(s)});
    return;
  }
  BringArgs bring;
  bring.request = request;
  bring.session = session;
  bring.copy = {key, kHost};
  bring.deadline = deadline;
  bring.memfd = std::move(memfd);
  Bring(bring, now, effects);
}

// As a reader the transfer keeps the copy where it is, whatever becomes of the
// session: only its end gives the copy free.
void Node::StartRead(const Waiter& waiter, const CopyRef& ref, Copy& copy,
                     absl::Time now, Effects& effects) {
  ++copy.readers;
  copy.fresh = false;
  copy.last_use = now;
  Start(ref.key,
        HostToClient{RangesOf(ref, copy), waiter.memfd, waiter.request},
        /*urgent=*/true, effects);
}

// Whether who waits may open the slabs that the copy lies in.
absl::Status Node::MayOpen(const Waiter& waiter, const CopyRef& ref,
                           const Copy& copy, absl::Time now, Effects& effects) {
  if (!waiter.lease) return absl::OkStatus();
  const DeviceIndex device = ref.place.at.device;
  std::vector<SlabSpec> slabs;  // None are known of a copy that is absent.
  if (copy.usable()) {
    slabs = spaces_[device.number()]->SlabsOf(copy.offset,
                                              copies_.SpaceOf(ref.key));
  }
  return CheckOpen(waiter.session, device, slabs, now, effects);
}

LeaseGrant Node::Grant(const Waiter& waiter, const CopyRef& ref, Copy& copy,
                       absl::Time now) {
  const DeviceIndex device = ref.place.at.device;
  LeaseGrant grant;
  grant.id = LeaseId(++last_id_);
  grant.key = ref.key;
  grant.device = device;
  grant.offset = copy.offset;
  grant.bytes = copies_.FindGroup(ref.key)->group->image_bytes;
  grant.was_resident = !waiter.waited;
  grant.apart = ref.place.apart;
  const uint64_t space = copies_.SpaceOf(ref.key);
  grant.new_slabs = NewSlabs(waiter.session, device, copy.offset, space);
  sessions_.Grant(waiter.session, grant.id, ref);
  KeepLease(grant.id, waiter.session, ref, /*there=*/true);
  ++copy.leases;
  Weigh(ref, copy);
  copy.fresh = false;
  copy.last_use = now;
  orders_.Staged(waiter.session, ref.key, now);
  return grant;
}

void Node::KeepLease(LeaseId id, SessionId session, const CopyRef& ref,
                     bool there) {
  if (ZoneOf(ref).backing == Backing::kIpc) return;
  Keep(KeptLease{id, session,
                 there ? std::optional<CopyRef>(ref) : std::nullopt});
}

void Node::Refuse(const Waiter& waiter, const CopyRef& ref, absl::Status why,
                  Effects& effects) {
  if (waiter.hold.has_value()) {
    plans_.Unask(*waiter.hold, ref.key.group);
    effects.held.push_back({*waiter.hold, ref.key.group, std::move(why)});
    return;
  }
  if (waiter.mend.has_value()) {
    return MendOver({ref.key, *waiter.mend}, why, effects);
  }
  if (waiter.lease) {
    ++counters_.stages_refused;
    sessions_.Refuse(waiter.session, ref);
    Note(effects, EventKind::kStageRefused, ref, std::string(why.message()));
  }
  effects.answers.push_back({waiter.request, std::move(why)});
}

void Node::ReleaseLease(LeaseId id, absl::Time now) {
  const SessionBook::Lease lease = sessions_.EndLease(id);
  KeepLease(id, lease.session, lease.copy, /*there=*/false);
  Copy& copy = copies_.At(lease.copy);
  HOIST_CHECK(copy.leases > 0);
  LeaveSlabs(lease.session, lease.copy.place.at.device, copy.offset,
             copies_.SpaceOf(lease.copy.key));
  copy.last_use = now;
  if (--copy.leases == 0) ++space_epoch_;
  Weigh(lease.copy, copy);
  DropDamaged(lease.copy, copy);
}

absl::Status Node::Release(SessionId session, const std::vector<LeaseId>& ids,
                           absl::Time now, Effects& effects) {
  absl::Status status;
  for (const LeaseId id : ids) {
    const SessionBook::Lease* lease = sessions_.FindLease(id);
    if (lease == nullptr || lease->session != session) {
      status = absl::NotFoundError(
          absl::StrCat("lease ", id.number(),
                       " is not held by this session; it may have been "
                       "released before"));
      continue;
    }
    ReleaseLease(id, now);
  }
  Tick(now, effects);
  return status;
}

absl::Status Node::Prefetch(SessionId session, const PrefetchArgs& args,
                            absl::Time now, Effects& effects) {
  HOIST_ASSIGN_OR_RETURN(const ModelPtr model, Find(session, args.model));
  if (args.to.tier == Tier::kDisk)
    return NodeEnding(*this).Park(session, *model, args, now, effects);
  for (const GroupIndex group : args.groups) {
    BringArgs bring;
    bring.copy = {{args.model, group}, {args.to, false}};
    HOIST_RETURN_IF_ERROR(CheckBring(bring));
  }
  sessions_.Use(session, args.model);
  for (const GroupIndex group : args.groups) {
    const CopyRef ref = {{args.model, group}, {args.to, false}};
    if (copies_.At(ref).usable()) continue;
    Need& need = NeedFor(ref, /*urgent=*/false, effects);
    need.give_up = now + kPrefetchPatience;
    needs_.Changed(need);
  }
  Tick(now, effects);
  return absl::OkStatus();
}

absl::StatusOr<std::vector<GroupHeat>> Node::ReportHeat(SessionId session,
                                                        const HeatArgs& args) {
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

absl::Status Node::SetOrder(SessionId session, ModelId model,
                            std::vector<GroupIndex> order, absl::Time now,
                            Effects& effects) {
  HOIST_ASSIGN_OR_RETURN(ModelPtr found, Find(session, model));
  for (const GroupIndex group : order) {
    if (group.number() >= found->spec->groups.size()) {
      return absl::InvalidArgumentError(
          absl::StrCat("the order names group ", group.number(), "; model ",
                       found->spec->name, " has ", found->spec->groups.size()));
    }
  }
  if (order.empty()) {
    sessions_.DoneWith(session, model);
    ++space_epoch_;  // It may make room now.
  } else {
    sessions_.Use(session, model);
  }
  orders_.Set(session, model, std::move(order));
  Tick(now, effects);
  return absl::OkStatus();
}

}  // namespace hoistd
