// What users hold and may hold: where the totals are checked, and counted anew.
#include <algorithm>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "daemon/base/status.h"
#include "daemon/core/node.h"

namespace hoistd {

// What the user's quota leaves to a plan; `but` as for Promisable.
uint64_t Node::QuotaRoom(SessionId session, const SetPlanArgs& args,
                         std::optional<ModelId> but) const {
  const User uid = sessions_.At(session).uid();
  const uint64_t limit = quota_.DeviceLimitOf(uid, args.device);
  if (limit == QuotaLimits::kNone) return limit;
  const uint64_t taken =
      plans_.RingBytes(
          {.device = args.device, .uid = uid, .except = args.replaces}) +
      BytesOf(plans_.UserCopies(uid, args.device, args.replaces), but) +
      slabs_.KeptBytes(args.device, uid);
  return limit - std::min(limit, taken);
}

absl::Status Node::FitsQuota(SessionId session, const SetPlanArgs& args,
                             const PlanGrant& grant) const {
  const User uid = sessions_.At(session).uid();
  const uint64_t limit = quota_.DeviceLimitOf(uid, args.device);
  if (limit == QuotaLimits::kNone) return absl::OkStatus();
  const std::set<CopyRef> before =
      plans_.UserCopies(uid, args.device, args.replaces);
  const uint64_t taken =
      plans_.RingBytes(
          {.device = args.device, .uid = uid, .except = args.replaces}) +
      BytesOf(before, std::nullopt);
  uint64_t added = grant.ring_bytes;
  for (const PlannedGroup& group : grant.groups) {
    const CopyRef ref = {{args.model, group.group},
                         {OnDevice(args.device), false}};
    if (!group.resident || before.contains(ref)) continue;
    added += copies_.SpaceOf(ref.key);
  }
  if (taken + added <= limit) return absl::OkStatus();
  return absl::ResourceExhaustedError(absl::StrCat(
      "the plan needs ", HumanBytes(added), " more; ", ToString(uid), " holds ",
      HumanBytes(taken), " of ", HumanBytes(limit), " of ",
      names_.Of(OnDevice(args.device)),
      ": release leases or clear plans, or raise quota.device_bytes in "
      "hoistd.toml"));
}

uint64_t Node::HoldableBytes(PlanId id) const {
  const User uid = plans_.Find(id)->uid;
  const auto left = [](uint64_t limit, uint64_t taken) {
    return limit - std::min(limit, taken);
  };
  // A fifth is for what is on its way from and to other places.
  const uint64_t all = left(options_.host_capacity_bytes / 5 * 4, held_bytes());
  const uint64_t held = left(quota_.LimitOf(uid, Quota::kHeldBytes),
                             quota_.Of(uid).Of(Quota::kHeldBytes));
  return std::min({all, held, HostRoom(uid)});
}

uint64_t Node::HostBytesOf(User uid) const {
  const Holdings& holdings = quota_.Of(uid);
  uint64_t bytes = holdings.Of(Quota::kPublishedBytes);
  for (const auto& [ref, use] : holdings.uses) {
    if (ref.place != kHost) continue;
    const bool published =
        copies_.FindModel(ref.key.model)->model->owner == uid &&
        copies_.FindGroup(ref.key)->unsaved();
    if (!published) bytes += use.bytes;
  }
  return bytes;
}

// What the user's plans may hold or they publish of the host beyond what they
// do.
uint64_t Node::HostRoom(User uid) const {
  const uint64_t limit = quota_.HostLimitOf(uid);
  if (limit == QuotaLimits::kNone) return limit;
  return limit - std::min(limit, HostBytesOf(uid));
}

uint64_t Node::held_bytes() const {
  uint64_t bytes = 0;
  std::set<OwnerId> parts;  // Several groups may hold one.
  for (const auto& [key, plans] : plans_.on_host()) {
    if (!parts_.Has(key)) {
      bytes += copies_.SpaceOf(key);
      continue;
    }
    for (const OwnerId part : parts_.PartsOf(key)) {
      if (parts.insert(part).second) bytes += parts_.SpaceOf(part);
    }
  }
  return bytes;
}

std::map<User, Holdings> Node::CountHoldings() const {
  QuotaBook counted;
  sessions_.CountInto(counted, copies_);
  models_.CountInto(counted);
  for (const auto& [id, model] : copies_.models()) {
    for (const GroupEntry& group : model->groups) {
      if (!group.unsaved()) continue;
      counted.Add(model->model->owner, Quota::kPublishedBytes,
                  SpaceOf(*group.group));
    }
  }
  incoming_.CountInto(counted);
  plans_.CountInto(counted);
  arenas_.CountInto(counted);
  return counted.users();
}

}  // namespace hoistd
