// Why something is refused, in words that fit who asks: a user is told of its
// own sessions and models, and of all others only how much they hold. Admins
// are told who has what.
#include <algorithm>
#include <set>
#include <string>
#include <utility>

#include "absl/strings/str_cat.h"
#include "daemon/core/node.h"

namespace hoistd {
namespace {

bool SeesAll(const Peer* asker) { return asker == nullptr || asker->admin; }

void AddPart(std::string& text, uint64_t amount, absl::string_view what) {
  if (amount > 0) absl::StrAppend(&text, ", ", HumanBytes(amount), what);
}

}  // namespace

struct Node::Shares {
  uint64_t leased = 0, held = 0, rings = 0, pinned = 0, moving = 0, idle = 0;
  uint64_t arenas = 0;
  uint64_t unsaved = 0;  // Published and nowhere else.
  uint64_t others = 0;   // By users whom the asker may not know.
};

// nullptr: what admins wait for belongs to no session.
std::string Node::TextFor(const Peer* asker, const Blocked& blocked) const {
  const std::string why(blocked.why.message());
  if (!blocked.at.has_value()) return why;
  const std::string text = Explain(*blocked.at, blocked.bytes, asker);
  return why.empty() ? text : absl::StrCat(text, " (", why, ")");
}

uint64_t* Node::ShareOf(const CopyRef& ref, const Copy& copy, const Peer* asker,
                        Shares& shares) const {
  const ModelEntry& model = *copies_.FindModel(ref.key.model);
  const bool used = copy.leases > 0;
  const bool known =
      SeesAll(asker) ||
      (used ? quota_.Uses(asker->uid, ref) : model.model->owner == asker->uid);
  if (!known) return &shares.others;
  const bool host = ref.place.at.tier == Tier::kHost;
  if (used) return host ? &shares.held : &shares.leased;
  if (copy.pinned) return &shares.pinned;
  if (!copy.usable() || copy.readers > 0) return &shares.moving;
  const GroupEntry& group = model.groups[ref.key.group.number()];
  return host && !group.on_disk() ? &shares.unsaved : &shares.idle;
}

Node::Shares Node::SharesOf(TierAt at, const Peer* asker) const {
  const auto known = [&](User uid) {
    return SeesAll(asker) || uid == asker->uid;
  };
  Shares shares;
  for (const auto& [id, model] : copies_.models()) {
    for (uint32_t g = 0; g < model->groups.size(); ++g) {
      for (const auto& [place, copy] : model->groups[g].copies) {
        if (place.at != at || copy.state == Residency::kAbsent) continue;
        *ShareOf({{id, GroupIndex(g)}, place}, copy, asker, shares) +=
            SpaceOf(*model->groups[g].group);
      }
    }
  }
  for (const auto& [id, plan] : plans_.standing()) {
    if (OnDevice(plan.grant.device) != at) continue;
    (known(plan.uid) ? shares.rings : shares.others) += plan.grant.ring_bytes;
  }
  for (const auto& [id, arena] : arenas_.all()) {
    if (OnDevice(arena.device) != at || !arena.placed) continue;
    (known(arena.uid) ? shares.arenas : shares.others) += arena.bytes;
  }
  for (const auto& [request, incoming] : incoming_.all()) {
    if (at != OnHost() || !incoming.offset.has_value()) continue;
    (known(incoming.owner) ? shares.moving : shares.others) +=
        SpaceOf(*incoming.group);
  }
  return shares;
}

// Session by session; what several lease is in each.
std::string Node::LeasesText(TierAt at, const Peer* asker) const {
  std::string text;
  for (const auto& [id, session] : sessions_.all()) {
    if (!SeesAll(asker) && session.uid() != asker->uid) continue;
    uint64_t leased = 0;
    for (const auto& [ref, count] : session.claims) {
      const GroupEntry& group = *copies_.FindGroup(ref.key);
      const auto copy = group.copies.find(ref.place);
      if (ref.place.at == at && copy != group.copies.end() &&
          copy->second.leases > 0) {
        leased += SpaceOf(*group.group);
      }
    }
    AddPart(text, leased,
            absl::StrCat(" is leased by session ", id.number(), " (",
                         session.args.client_name, ")"));
  }
  return text;
}

// Who holds the tier, and what would free it.
std::string Node::Explain(TierAt at, uint64_t bytes, const Peer* asker) const {
  const Shares shares = SharesOf(at, asker);
  std::string text =
      absl::StrCat("needs ", HumanBytes(bytes), " ", names_.On(at), "; of ",
                   HumanBytes(CapacityOf(at)));
  if (names_.IsInPlace(at)) absl::StrAppend(&text, " (", names_.KeyOf(at), ")");
  absl::StrAppend(&text, LeasesText(at, asker));
  AddPart(text, shares.rings, " is in rings of plans");
  AddPart(text, shares.arenas, " is in arenas");
  AddPart(text, shares.held, " is held by plans");
  AddPart(text, shares.pinned, " is pinned");
  AddPart(text, shares.moving, " is being copied");
  AddPart(text, shares.idle, " is idle");
  AddPart(text, shares.unsaved, " is published and nowhere else");
  if (shares.unsaved > 0 && !CanSpill()) {
    absl::StrAppend(&text, " (set disk.spill_dir to let it spill)");
  } else if (shares.unsaved > 0 && !spill_failed_.ok()) {
    // It may name what others spill.
    const std::string why =
        SeesAll(asker)
            ? absl::StrCat(": ", std::string(spill_failed_.message()))
            : "; an admin is told why";
    absl::StrAppend(&text, " (spilling failed", why, ")");
  }
  AddPart(text, shares.others, " is used by other users");
  if (at.tier == Tier::kDevice) {
    absl::StrAppend(&text, KeptText(at.device, asker));
  }
  const uint64_t largest = at.tier == Tier::kDevice
                               ? spaces_[at.device.number()]->largest_free()
                               : host_.largest_free();
  absl::StrAppend(&text, "; the largest free piece is ", HumanBytes(largest));
  return text;
}

// What idle workers hold open though it is needed.
std::string Node::KeptText(DeviceIndex device, const Peer* asker) const {
  std::string text;
  if (!SeesAll(asker)) {
    AddPart(text, slabs_.KeptBytes(device, std::nullopt),
            " is held open by idle workers that do not answer");
    return text;
  }
  std::set<User> uids;
  for (const auto& [id, session] : sessions_.all()) {
    uids.insert(session.uid());
  }
  for (const User uid : uids) {
    AddPart(text, slabs_.KeptBytes(device, uid),
            absl::StrCat(" is held open by idle workers of uid ", uid.number(),
                         " that do not answer"));
  }
  return text;
}

// What of a device is taken or promised, beside a plan of `session`.
std::string Node::DeviceTaken(DeviceIndex device, SessionId session,
                              std::optional<PlanId> except) const {
  const std::set<CopyRef> promised =
      plans_.PromisedCopies(device, session, except);
  const uint64_t copies = BytesOf(promised, std::nullopt);
  const uint64_t rings = plans_.RingBytes({.device = device, .except = except});
  const Peer* asker = PeerOf(session);
  if (SeesAll(asker)) {
    return absl::StrCat(HumanBytes(copies),
                        " is leased, pinned or promised to residents and ",
                        HumanBytes(rings),
                        " is in rings (`hoistctl plans` shows who has what)");
  }
  const uint64_t own =
      BytesOf(plans_.UserCopies(asker->uid, device, except), std::nullopt) +
      plans_.RingBytes({.device = device, .uid = asker->uid, .except = except});
  const uint64_t all = copies + rings;
  return absl::StrCat(HumanBytes(own), " is taken by your leases and plans, ",
                      HumanBytes(all - std::min(all, own)),
                      " is pinned or taken by other users");
}

// FailedPrecondition: the model cannot be forgotten now.
absl::Status Node::InUse(const ModelEntry& entry, const Peer* asker) const {
  const ModelId id = entry.model->id;
  const std::string& name = entry.model->spec->name;
  const auto by = [&](SessionId session, User uid) {
    if (SeesAll(asker) || uid == asker->uid) {
      return absl::StrCat("session ", session.number());
    }
    return std::string("another user");
  };
  const auto hint = [&](absl::string_view verb, absl::string_view what) {
    return SeesAll(asker) ? absl::StrCat("; `hoistctl ", verb, "` shows ", what)
                          : std::string("; try again later");
  };
  for (const auto& [request, pending] : plans_.waiting()) {
    if (pending.grant.model != id) continue;
    return absl::FailedPreconditionError(absl::StrCat(
        name, " is about to be streamed by ", by(pending.session, pending.uid),
        ", whose plan waits for space"));
  }
  for (const auto& [plan_id, plan] : plans_.standing()) {
    if (plan.grant.model != id) continue;
    return absl::FailedPreconditionError(
        absl::StrCat(name, " is streamed by ", by(plan.session, plan.uid),
                     hint("plans", "who has plans")));
  }
  for (uint32_t g = 0; g < entry.groups.size(); ++g) {
    const GroupEntry& group = entry.groups[g];
    if (checking_.contains({id, GroupIndex(g)})) {
      return absl::FailedPreconditionError(absl::StrCat(
          name, "/", group.group->name, " is being checked; try again later"));
    }
    for (const auto& [place, copy] : group.copies) {
      const bool awaits_pool =
          place == kHost && AwaitsPool({id, GroupIndex(g)}, copy);
      const uint32_t spills = copy.state == Residency::kSpilling ? 1 : 0;
      if (copy.leases == 0 && copy.readers == spills &&
          !copy.filling.has_value() && !awaits_pool) {
        continue;
      }
      return absl::FailedPreconditionError(absl::StrCat(
          name, "/", group.group->name, " is ",
          copy.leases > 0 ? "leased " : "being copied ", names_.On(place.at),
          hint("sessions", "who holds leases")));
    }
  }
  return absl::OkStatus();
}

}  // namespace hoistd
