#include "daemon/core/plan_offers.h"

#include <algorithm>
#include <string>
#include <utility>

#include "absl/container/flat_hash_map.h"
#include "absl/strings/str_cat.h"
#include "daemon/base/status.h"
#include "daemon/core/tenure.h"

namespace hoistd {
namespace {

absl::Status CheckPlanned(DeviceIndex device, size_t devices,
                          const DeviceNames& names) {
  if (device.number() >= devices) {
    return absl::InvalidArgumentError(absl::StrCat(
        "no device ", device.number(), "; this node has ", names.count()));
  }
  if (!names.IsInPlace(OnDevice(device))) return absl::OkStatus();
  return absl::InvalidArgumentError(
      "what is read in place is leased group by group and not planned: name "
      "the device that the groups are to be streamed to");
}

uint64_t Left(uint64_t limit, uint64_t taken) {
  return limit - std::min(limit, taken);
}

// Without a budget; adds the groups to the grant.
absl::StatusOr<PlanProblem> ProblemOf(const PlanRequest& asked,
                                      const Model& model, PlanGrant& grant) {
  const auto& args = asked.args;
  if (args.order.empty()) {
    return absl::InvalidArgumentError(
        "the order is empty; name each group that a pass stages");
  }
  if (!args.blocks.empty() && args.blocks.size() != model.spec->groups.size()) {
    return absl::InvalidArgumentError(absl::StrCat(
        "the plan has blocks for ", args.blocks.size(), " groups; model ",
        model.spec->name, " has ", model.spec->groups.size()));
  }
  PlanProblem problem;
  absl::flat_hash_map<GroupIndex, uint32_t> local;
  for (const GroupIndex index : args.order) {
    if (index.number() >= model.spec->groups.size()) {
      return absl::InvalidArgumentError(
          absl::StrCat("the order names group ", index.number(), "; model ",
                       model.spec->name, " has ", model.spec->groups.size()));
    }
    const auto [it, is_new] =
        local.try_emplace(index, static_cast<uint32_t>(local.size()));
    problem.order.push_back(it->second);
    if (!is_new) continue;
    const Group& group = *model.spec->groups[index.number()];
    problem.bytes.push_back(SpaceOf(group));
    if (!args.blocks.empty()) {
      problem.blocks.push_back(args.blocks[index.number()]);
    }
    grant.groups.push_back({.group = index, .image_bytes = group.image_bytes});
  }
  return problem;
}

// Assigns residents, slots, and the order of streamed groups.
void PlaceGroups(const Plan& plan, const std::vector<uint32_t>& order,
                 PlanGrant& grant) {
  std::vector<uint32_t> rank(grant.groups.size());
  uint32_t streamed = 0;
  for (size_t i = 0; i < grant.groups.size(); ++i) {
    grant.groups[i].resident = !plan.slots[i].has_value();
    if (grant.groups[i].resident) continue;
    grant.groups[i].slot = *plan.slots[i];
    rank[i] = streamed++;
  }
  for (const uint32_t i : order) {
    if (!grant.groups[i].resident) grant.lane_order.push_back(rank[i]);
  }
}

}  // namespace

const SessionBook& PlanOffers::sessions() const { return tenure_.sessions(); }

const PlanBook& PlanOffers::plans() const { return tenure_.plans(); }

uint64_t PlanOffers::BytesOf(const std::set<CopyRef>& copies,
                             std::optional<ModelId> but) const {
  uint64_t bytes = 0;
  for (const CopyRef& ref : copies) {
    if (ref.key.model == but && !ref.place.shared && !ref.place.apart) continue;
    bytes += copies_.SpaceOf(ref.key);
  }
  return bytes;
}

PlanRoom PlanOffers::RoomFor(const PlanRequest& asked,
                             std::optional<ModelId> but) const {
  const auto& [session, args] = asked;
  const auto [device, replaces] = std::pair(args.device, args.replaces);
  PlanRoom room;
  room.on_device =
      Left(space_.device(device).capacity(),
           LostTo(asked) +
               plans().RingBytes({.device = device, .except = replaces}) +
               BytesOf(plans().PromisedCopies(device, session, replaces), but));
  room.in_quota = QuotaRoom(asked, but);
  const uint64_t limit = sessions().At(session).args.device_budget_bytes;
  if (limit == 0) return room;
  room.in_session = Left(
      limit, plans().RingBytes(
                 {.device = device, .session = session, .except = replaces}) +
                 BytesOf(plans().OwnCopies(session, device, replaces), but));
  return room;
}

// The largest budget known to be enough; 0: none.
uint64_t PlanOffers::SufficientBudget(const PlanRequest& asked) const {
  PlanRequest tried = asked;
  for (const std::optional<ModelId> but :
       {std::optional<ModelId>(asked.args.model), std::optional<ModelId>()}) {
    tried.args.budget_bytes = RoomFor(asked, but).least();
    if (tried.args.budget_bytes == 0) continue;
    const absl::StatusOr<PlanGrant> grant = Make(tried);
    if (grant.ok() && Fits(tried, *grant).ok()) {
      return tried.args.budget_bytes;
    }
  }
  return 0;
}

absl::StatusOr<PlanGrant> PlanOffers::Make(const PlanRequest& asked) const {
  const auto& [session, args] = asked;
  const SessionBook::Session* owner = sessions().Find(session);
  if (owner == nullptr) {
    return absl::NotFoundError("the session is closed; connect again");
  }
  // A user of the model may plan anew: its old plan may be gone by now.
  if (tenure_.draining() && !sessions().Uses(session, args.model)) {
    return absl::UnavailableError(
        "hoistd is draining and sets no new plans; wait for `hoistctl drain "
        "--resume`");
  }
  HOIST_ASSIGN_OR_RETURN(const ModelPtr model,
                         tenure_.Find(session, args.model));
  HOIST_RETURN_IF_ERROR(models_.CheckShares(owner->args.peer, *model));
  HOIST_RETURN_IF_ERROR(CheckPlanned(args.device, devices_.size(), names_));
  if (args.replaces.has_value()) {
    HOIST_RETURN_IF_ERROR(plans().CheckOwn(session, *args.replaces));
  }
  PlanGrant grant;
  HOIST_ASSIGN_OR_RETURN(PlanProblem problem, ProblemOf(asked, *model, grant));
  const uint64_t limit = owner->args.device_budget_bytes;
  if (limit > 0 && args.budget_bytes > limit) {
    return absl::ResourceExhaustedError(absl::StrCat(
        "the plan asks for ", HumanBytes(args.budget_bytes),
        "; this session may use ", HumanBytes(limit),
        " of a device: ask for that, or connect with a larger budget"));
  }
  problem.budget_bytes = args.budget_bytes;
  if (args.budget_bytes == 0) {
    problem.budget_bytes = SufficientBudget(asked);
    if (problem.budget_bytes == 0) {
      problem.budget_bytes = RoomFor(asked).least();
    }
  }
  absl::StatusOr<Plan> plan = MakePlan(problem);
  if (!plan.ok()) {
    return absl::Status(
        plan.status().code(),
        absl::StrCat(model->spec->name, ": ", plan.status().message(),
                     asked.takes_all() ? Withheld(args.device) : ""));
  }
  PlaceGroups(*plan, problem.order, grant);
  grant.model = args.model;
  grant.device = args.device;
  grant.budget_bytes = problem.budget_bytes;
  grant.ring_bytes = plan->ring_bytes;
  grant.resident_bytes = plan->resident_bytes;
  grant.streamed_bytes = plan->streamed_bytes;
  grant.lead = plan->lead;
  grant.gives_way = args.gives_way;
  grant.takes_all = asked.takes_all();
  return grant;
}

// The user's quota left for a plan; `but` as for RoomFor.
uint64_t PlanOffers::QuotaRoom(const PlanRequest& asked,
                               std::optional<ModelId> but) const {
  const auto& [session, args] = asked;
  const User uid = sessions().At(session).uid();
  const uint64_t limit = quota_.DeviceLimitOf(uid, args.device);
  if (limit == QuotaLimits::kNone) return limit;
  const uint64_t taken =
      plans().RingBytes(
          {.device = args.device, .uid = uid, .except = args.replaces}) +
      BytesOf(plans().UserCopies(uid, args.device, args.replaces), but) +
      space_.slabs().KeptBytes(args.device, uid);
  return Left(limit, taken);
}

// The plan's device bytes beside these copies.
uint64_t PlanOffers::AddedBy(const PlanRequest& asked, const PlanGrant& grant,
                             const std::set<CopyRef>& before) const {
  uint64_t bytes = grant.ring_bytes;
  for (const PlannedGroup& group : grant.groups) {
    const CopyRef ref = {{asked.args.model, group.group},
                         {OnDevice(asked.args.device), false}};
    if (!group.resident || before.contains(ref)) continue;
    bytes += copies_.SpaceOf(ref.key);
  }
  return bytes;
}

absl::Status PlanOffers::FitsQuota(const PlanRequest& asked,
                                   const PlanGrant& grant) const {
  const auto& [session, args] = asked;
  const User uid = sessions().At(session).uid();
  const uint64_t limit = quota_.DeviceLimitOf(uid, args.device);
  if (limit == QuotaLimits::kNone) return absl::OkStatus();
  const std::set<CopyRef> before =
      plans().UserCopies(uid, args.device, args.replaces);
  const uint64_t taken =
      plans().RingBytes(
          {.device = args.device, .uid = uid, .except = args.replaces}) +
      BytesOf(before);
  const uint64_t added = AddedBy(asked, grant, before);
  if (taken + added <= limit) return absl::OkStatus();
  return absl::ResourceExhaustedError(absl::StrCat(
      "the plan needs ", HumanBytes(added), " more; ", ToString(uid), " holds ",
      HumanBytes(taken), " of ", HumanBytes(limit), " of ",
      names_.Of(OnDevice(args.device)),
      ": release leases or clear plans, or raise quota.device_bytes in "
      "hoistd.toml"));
}

// Whether the device, and the session's own budget, can hold the plan beside
// all earlier promises.
absl::Status PlanOffers::Fits(const PlanRequest& asked,
                              const PlanGrant& grant) const {
  const auto& [session, args] = asked;
  const auto added = [&](const std::set<CopyRef>& before) {
    return AddedBy(asked, grant, before);
  };
  const std::set<CopyRef> own =
      plans().OwnCopies(session, args.device, args.replaces);
  const uint64_t own_taken =
      BytesOf(own) +
      plans().RingBytes(
          {.device = args.device, .session = session, .except = args.replaces});
  const uint64_t limit = sessions().At(session).args.device_budget_bytes;
  if (limit > 0 && own_taken + added(own) > limit) {
    return absl::ResourceExhaustedError(absl::StrCat(
        "the plan needs ", HumanBytes(added(own)),
        " more; this session may "
        "use ",
        HumanBytes(limit), " of a device, and ", HumanBytes(own_taken),
        " is taken by its leases and plans: connect with a larger budget"));
  }
  HOIST_RETURN_IF_ERROR(FitsQuota(asked, grant));
  const uint64_t capacity = space_.device(args.device).capacity();
  const std::set<CopyRef> promised =
      plans().PromisedCopies(args.device, session, args.replaces);
  const uint64_t taken = BytesOf(promised);
  const uint64_t rings =
      plans().RingBytes({.device = args.device, .except = args.replaces});
  if (taken + rings + added(promised) <= capacity) return absl::OkStatus();
  return absl::ResourceExhaustedError(absl::StrCat(
      "the plan needs ", HumanBytes(added(promised)), " more ",
      names_.On(OnDevice(args.device)), "; of ", HumanBytes(capacity), ", ",
      DeviceTaken(args.device, session, args.replaces), Withheld(args.device)));
}

// Why the device's capacity is below its pool.
std::string PlanOffers::Withheld(DeviceIndex device) const {
  const PoolBounds& bounds = space_.device(device).bounds();
  const uint64_t spared = bounds.spared();
  const uint64_t others = bounds.withheld() - spared;
  return absl::StrCat(
      others == 0 ? ""
                  : absl::StrCat("; other programs have ", HumanBytes(others),
                                 " of device.pool, or device.headroom does"),
      spared == 0 ? ""
                  : absl::StrCat("; ", HumanBytes(spared),
                                 " are left to workers that lack memory"));
}

absl::StatusOr<PlanGrant> PlanOffers::Check(const PlanRequest& asked) const {
  HOIST_ASSIGN_OR_RETURN(PlanGrant grant, Make(asked));
  if (!asked.args.replaces.has_value()) {
    HOIST_RETURN_IF_ERROR(
        plans().CheckMore(tenure_.PeerOf(asked.session)->uid));
  }
  const absl::Status fits = Fits(asked, grant);
  if (fits.ok()) return grant;
  const uint64_t does = SufficientBudget(asked);
  return absl::ResourceExhaustedError(
      absl::StrCat(std::string(fits.message()),
                   does == 0 ? "; no budget would be enough now"
                             : absl::StrCat("; a budget of ", HumanBytes(does),
                                            " would be enough")));
}

absl::StatusOr<PlanGrant> PlanOffers::CheckShare(const PlanRequest& asked,
                                                 uint64_t plans) const {
  PlanRequest share = asked;
  share.args.budget_bytes =
      std::min(RoomFor(asked).least(),
               space_.CapacityOf(OnDevice(asked.args.device)) / plans);
  absl::StatusOr<PlanGrant> grant = Check(share);
  if (!grant.ok()) return Check(asked);
  grant->takes_all = asked.takes_all();  // It lends as the others do.
  return grant;
}

// Bytes unavailable to a plan beside all promises.
uint64_t PlanOffers::LostTo(const PlanRequest& asked) const {
  const auto& [session, args] = asked;
  const Zone own = space_.ZoneOf(
      {{args.model, GroupIndex(0)}, {OnDevice(args.device), false}});
  return space_.LostTo(
      args.device, own,
      plans().PromisedCopies(args.device, session, args.replaces));
}

// Device memory taken or promised, beside a plan of `session`.
std::string PlanOffers::DeviceTaken(DeviceIndex device, SessionId session,
                                    std::optional<PlanId> except) const {
  const std::set<CopyRef> promised =
      plans().PromisedCopies(device, session, except);
  const uint64_t copies = BytesOf(promised);
  const uint64_t rings =
      plans().RingBytes({.device = device, .except = except});
  const Peer* asker = tenure_.PeerOf(session);
  if (SeesAll(asker)) {
    return absl::StrCat(HumanBytes(copies),
                        " is leased, pinned or promised to residents and ",
                        HumanBytes(rings),
                        " is in rings (`hoistctl plans` shows who has what)");
  }
  const uint64_t own =
      BytesOf(plans().UserCopies(asker->uid, device, except)) +
      plans().RingBytes(
          {.device = device, .uid = asker->uid, .except = except});
  const uint64_t all = copies + rings;
  return absl::StrCat(HumanBytes(own), " is taken by your leases and plans, ",
                      HumanBytes(all - std::min(all, own)),
                      " is pinned or taken by other users");
}

}  // namespace hoistd
