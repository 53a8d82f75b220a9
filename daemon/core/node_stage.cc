// Staging, leases and order hints.
#include <algorithm>
#include <utility>

#include "absl/strings/str_cat.h"
#include "daemon/base/check.h"
#include "daemon/base/status.h"
#include "daemon/core/node.h"
#include "daemon/model/model_name.h"

namespace hoistd {
namespace {

// How long a prefetch waits for space before it is forgotten.
constexpr absl::Duration kPrefetchPatience = absl::Seconds(60);

}  // namespace

void Node::Bring(const BringArgs& args, absl::Time now, Effects& effects) {
  if (args.lease) ++counters_.stages;
  if (Copy* copy = copies_.Find(args.copy)) {
    audit_.DropDamaged(args.copy, *copy);
  }
  if (absl::Status s = CheckBring(args); !s.ok()) {
    if (args.lease) ++counters_.stages_refused;
    effects.answers.push_back({args.request, std::move(s)});
    return;
  }
  if (tenure_.sessions().Find(args.session) != nullptr) {
    tenure_.sessions().Use(args.session, args.copy.key.model);
  }
  Waiter waiter;
  waiter.request = args.request;
  waiter.session = args.session;
  waiter.lease = args.lease;
  waiter.since = now;
  waiter.pin = args.pin;
  waiter.hold = args.hold;
  waiter.memfd = args.memfd;
  waiter.no_wait = args.deadline <= now;
  waiter.deadline = waiter.no_wait ? absl::InfiniteFuture() : args.deadline;
  if (args.lease) {
    tenure_.sessions().Claim(args.session, args.copy,
                             copies_.SpaceOf(args.copy.key));
  }
  Copy& copy = copies_.At(args.copy);
  const bool keeps = args.lease || args.pin;
  if (copy.serves() && (!keeps || space_.CheckReservations(args.copy).ok()) &&
      tenure_.MayOpen(waiter, args.copy, copy, now).ok()) {
    Satisfy(waiter, args.copy, copy, now, effects);
    return;
  }
  waiter.waited = true;
  const Copy* host = copies_.Find({args.copy.key, kHost});
  waiter.nearest =
      host != nullptr && host->usable() ? Tier::kHost : Tier::kDisk;
  if (args.copy.place.at.tier == Tier::kDevice) {
    space_.device(args.copy.place.at.device).RetrySlabs();
  }
  const bool is_new = supply_.needs().Find(args.copy) == nullptr;
  Need& need = supply_.NeedFor(args.copy, args.urgent, effects);
  if (is_new) need.spare = args.spare;
  supply_.AddWaiter(need, waiter);
  Tick(now, effects);
}

void Node::Satisfy(const Waiter& waiter, const CopyRef& ref, Copy& copy,
                   absl::Time now, Effects& effects) {
  copies_.Apply(copy, ResidencyEvent::kUse);
  if (waiter.hold.has_value()) {
    HoldArrived(*waiter.hold, ref, copy, effects);
    return;
  }
  if (waiter.repair.has_value()) {
    return audit_.Repair({ref.key, *waiter.repair}, copy, now, effects);
  }
  if (waiter.memfd != nullptr) {
    return supply_.Send(ref, copy, waiter, now, effects);
  }
  if (waiter.pin) space_.SetPinned(ref, copy, true);
  Answer answer = {waiter.request};
  if (waiter.lease) {
    if (!waiter.waited) ++counters_.stages_resident;
    counters_.stage_times[static_cast<size_t>(waiter.nearest)].Add(
        now - waiter.since);
    answer.lease = tenure_.Grant(LeaseId(ids_.Next()), waiter, ref, copy, now);
  }
  effects.answers.push_back(std::move(answer));
}

void Node::ReadImage(RequestId request, SessionId session, GroupKey key,
                     std::shared_ptr<hoist::UniqueFd> memfd,
                     uint64_t memfd_bytes, absl::Time deadline, absl::Time now,
                     Effects& effects) {
  if (absl::Status s = tenure_.CheckRead(session, key, memfd_bytes); !s.ok()) {
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

void Node::Refuse(const Waiter& waiter, const CopyRef& ref, absl::Status why,
                  Effects& effects) {
  if (waiter.hold.has_value()) {
    tenure_.plans().Unask(*waiter.hold, ref.key.group);
    effects.held.push_back({*waiter.hold, ref.key.group, std::move(why)});
    return;
  }
  if (waiter.repair.has_value()) {
    return audit_.RepairOver({ref.key, *waiter.repair}, why, effects);
  }
  if (waiter.lease) {
    ++counters_.stages_refused;
    tenure_.sessions().Refuse(waiter.session, ref);
    Note(effects, copies_, EventKind::kStageRefused, ref,
         std::string(why.message()));
  }
  effects.answers.push_back({waiter.request, std::move(why)});
}

void Node::ReleaseLease(LeaseId id, absl::Time now) {
  const CopyRef ref = tenure_.Release(id, now);
  audit_.DropDamaged(ref, copies_.At(ref));
}

absl::Status Node::Release(SessionId session, const std::vector<LeaseId>& ids,
                           absl::Time now, Effects& effects) {
  absl::Status status;
  for (const LeaseId id : ids) {
    const SessionBook::Lease* lease = tenure_.sessions().FindLease(id);
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
  HOIST_ASSIGN_OR_RETURN(const ModelPtr model,
                         tenure_.Find(session, args.model));
  if (args.to.tier == Tier::kDisk)
    return Park(session, *model, args, now, effects);
  for (const GroupIndex group : args.groups) {
    BringArgs bring;
    bring.session = session;
    bring.copy = {{args.model, group}, {args.to, false}};
    HOIST_RETURN_IF_ERROR(CheckBring(bring));
  }
  tenure_.sessions().Use(session, args.model);
  for (const GroupIndex group : args.groups) {
    const CopyRef ref = {{args.model, group}, {args.to, false}};
    if (copies_.At(ref).usable()) continue;
    Need& need = supply_.NeedFor(ref, /*urgent=*/false, effects);
    need.give_up = now + kPrefetchPatience;
    supply_.needs().Changed(need);
  }
  Tick(now, effects);
  return absl::OkStatus();
}

absl::Status Node::Park(SessionId session, const Model& model,
                        const PrefetchArgs& args, absl::Time now,
                        Effects& effects) {
  if (EndsWith(model.spec->name) != session) {
    return absl::PermissionDeniedError(absl::StrCat(
        "only what ends with this session goes to the disk at its word, and ",
        model.spec->name, " does not; publish it with of_session"));
  }
  std::vector<CopyRef> copies;
  for (const GroupIndex group : args.groups) {
    const CopyRef ref = {{model.id, group}, kHost};
    if (copies_.FindGroup(ref.key) == nullptr) {
      return absl::NotFoundError(
          absl::StrCat(model.spec->name, " has no group ", group.number(),
                       "; it has ", model.spec->groups.size()));
    }
    copies.push_back(ref);
  }
  const CopyTotals parked =
      Evict(copies, now, effects, Leaving::Why::kByWorker);
  if (parked.kept == 0) return absl::OkStatus();
  return absl::FailedPreconditionError(
      absl::StrCat(parked.kept, " of ", copies.size(),
                   " groups stay on the host: ", parked.kept_reason));
}

absl::StatusOr<std::vector<GroupHeat>> Node::ReportHeat(SessionId session,
                                                        const HeatArgs& args) {
  HOIST_ASSIGN_OR_RETURN(const ModelPtr model,
                         tenure_.Find(session, args.model));
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
  HOIST_ASSIGN_OR_RETURN(ModelPtr found, tenure_.Find(session, model));
  for (const GroupIndex group : order) {
    if (group.number() >= found->spec->groups.size()) {
      return absl::InvalidArgumentError(
          absl::StrCat("the order names group ", group.number(), "; model ",
                       found->spec->name, " has ", found->spec->groups.size()));
    }
  }
  if (order.empty()) {
    tenure_.DoneWith(session, model);
    space_.Changed();  // It may make room now.
  } else {
    tenure_.sessions().Use(session, model);
  }
  tenure_.orders().Set(session, model, std::move(order));
  Tick(now, effects);
  return absl::OkStatus();
}

}  // namespace hoistd
