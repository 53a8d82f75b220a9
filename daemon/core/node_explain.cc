// Texts of refusals, as the asker may know them. A user learns of its own
// sessions and models, and only the sum of all others. Admins learn all.
#include <algorithm>
#include <map>
#include <set>
#include <string>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "daemon/core/node_picture.h"

namespace hoistd {
namespace {

void AddPart(std::string& text, uint64_t amount, absl::string_view what) {
  if (amount > 0) absl::StrAppend(&text, ", ", HumanBytes(amount), what);
}

}  // namespace

struct NodePicture::Shares {
  uint64_t leased = 0, held = 0, rings = 0, pinned = 0, moving = 0, idle = 0;
  uint64_t arenas = 0;
  uint64_t unsaved = 0;  // Published, without another copy.
  uint64_t others = 0;   // Of users hidden from the asker.
};

// nullptr: an admin's request belongs to no session.
std::string NodePicture::TextFor(const Peer* asker,
                                 const Blocked& blocked) const {
  const std::string why(blocked.why.message());
  if (!blocked.at.has_value()) return why;
  const std::string text = Explain(*blocked.at, blocked.bytes, asker);
  return why.empty() ? text : absl::StrCat(text, " (", why, ")");
}

uint64_t* NodePicture::ShareOf(const CopyRef& ref, const Copy& copy,
                               const Peer* asker, Shares& shares) const {
  const ModelEntry& model = *node_.copies.FindModel(ref.key.model);
  const bool used = copy.leases > 0;
  const bool known =
      SeesAll(asker) || (used ? node_.quota.Uses(asker->uid, ref)
                              : model.model->owner == asker->uid);
  if (!known) return &shares.others;
  const bool host = ref.place.at.tier == Tier::kHost;
  if (used) return host ? &shares.held : &shares.leased;
  if (copy.pinned) return &shares.pinned;
  if (!copy.usable() || copy.readers > 0) return &shares.moving;
  const GroupEntry& group = model.groups[ref.key.group.number()];
  return host && !group.on_disk() ? &shares.unsaved : &shares.idle;
}

NodePicture::Shares NodePicture::SharesOf(TierAt at, const Peer* asker) const {
  const auto known = [&](User uid) {
    return SeesAll(asker) || uid == asker->uid;
  };
  Shares shares;
  for (const auto& [id, model] : node_.copies.models()) {
    for (uint32_t g = 0; g < model->groups.size(); ++g) {
      for (const auto& [place, copy] : model->groups[g].copies) {
        if (place.at != at || copy.state == Residency::kAbsent) continue;
        *ShareOf({{id, GroupIndex(g)}, place}, copy, asker, shares) +=
            SpaceOf(*model->groups[g].group);
      }
    }
  }
  for (const auto& [id, plan] : node_.tenure.plans().standing()) {
    if (OnDevice(plan.grant.device) != at) continue;
    (known(plan.uid) ? shares.rings : shares.others) += plan.grant.ring_bytes;
  }
  for (const auto& [id, arena] : node_.arenas.all()) {
    if (OnDevice(arena.device) != at || !arena.placed) continue;
    (known(arena.uid) ? shares.arenas : shares.others) += arena.bytes;
  }
  for (const auto& [request, incoming] : node_.incoming.all()) {
    if (at != OnHost() || !incoming.offset.has_value()) continue;
    (known(incoming.owner) ? shares.moving : shares.others) +=
        SpaceOf(*incoming.group);
  }
  return shares;
}

// Per session; a copy leased by several counts for each.
std::string NodePicture::LeasesText(TierAt at, const Peer* asker) const {
  std::string text;
  for (const auto& [id, session] : node_.tenure.sessions().all()) {
    if (!SeesAll(asker) && session.uid() != asker->uid) continue;
    uint64_t leased = 0;
    for (const auto& [ref, count] : session.claims) {
      const GroupEntry& group = *node_.copies.FindGroup(ref.key);
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

// Who holds the tier, and how to free space.
std::string NodePicture::Explain(TierAt at, uint64_t bytes,
                                 const Peer* asker) const {
  const Shares shares = SharesOf(at, asker);
  std::string text =
      absl::StrCat("needs ", HumanBytes(bytes), " ", node_.names.On(at),
                   "; of ", HumanBytes(node_.space.CapacityOf(at)));
  if (node_.names.IsInPlace(at))
    absl::StrAppend(&text, " (", node_.names.KeyOf(at), ")");
  absl::StrAppend(&text, LeasesText(at, asker));
  AddPart(text, shares.rings, " is in rings of plans");
  AddPart(text, shares.arenas, " is in arenas");
  AddPart(text, shares.held, " is held by plans");
  AddPart(text, shares.pinned, " is pinned");
  AddPart(text, shares.moving, " is being copied");
  AddPart(text, shares.idle, " is idle");
  AddPart(text, shares.unsaved, " is published and nowhere else");
  if (shares.unsaved > 0 && !node_.space.CanSpill()) {
    absl::StrAppend(&text, " (set disk.spill_dir to let it spill)");
  } else if (shares.unsaved > 0 && node_.spill.failed()) {
    // It may name others' images.
    const std::string why =
        SeesAll(asker)
            ? absl::StrCat(": ", std::string(node_.spill.why().message()))
            : "; an admin is told why";
    absl::StrAppend(&text, " (spilling failed", why, ")");
  }
  AddPart(text, shares.others, " is used by other users");
  if (at.tier == Tier::kDevice) {
    absl::StrAppend(&text, KeptText(at.device, asker));
  }
  absl::StrAppend(&text, "; the largest free piece is ",
                  HumanBytes(node_.space.LargestFreeOf(at)));
  return text;
}

// Slabs that idle workers hold open against requests.
std::string NodePicture::KeptText(DeviceIndex device, const Peer* asker) const {
  std::string text;
  if (!SeesAll(asker)) {
    AddPart(text, node_.space.slabs().KeptBytes(device, std::nullopt),
            " is held open by idle workers that do not answer");
    return text;
  }
  std::map<User, std::vector<int32_t>> keepers;
  for (const auto& [id, session] : node_.tenure.sessions().all()) {
    if (!node_.space.slabs().Keeps(id, device)) continue;
    keepers[session.uid()].push_back(session.args.peer.pid);
  }
  for (const auto& [uid, pids] : keepers) {
    AddPart(text, node_.space.slabs().KeptBytes(device, uid),
            absl::StrCat(" is held open by idle workers of uid ", uid.number(),
                         " (pid ", absl::StrJoin(pids, ", "),
                         ") that do not answer"));
  }
  return text;
}

// FailedPrecondition: the model cannot be forgotten now.
absl::Status NodePicture::InUse(const ModelEntry& entry,
                                const Peer* asker) const {
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
  for (const auto& [request, pending] : node_.tenure.plans().waiting()) {
    if (pending.grant.model != id) continue;
    return absl::FailedPreconditionError(absl::StrCat(
        name, " is about to be streamed by ", by(pending.session, pending.uid),
        ", whose plan waits for space"));
  }
  for (const auto& [plan_id, plan] : node_.tenure.plans().standing()) {
    if (plan.grant.model != id) continue;
    return absl::FailedPreconditionError(
        absl::StrCat(name, " is streamed by ", by(plan.session, plan.uid),
                     hint("plans", "who has plans")));
  }
  for (uint32_t g = 0; g < entry.groups.size(); ++g) {
    const GroupEntry& group = entry.groups[g];
    if (node_.audit.Checks({id, GroupIndex(g)})) {
      return absl::FailedPreconditionError(absl::StrCat(
          name, "/", group.group->name, " is being checked; try again later"));
    }
    for (const auto& [place, copy] : group.copies) {
      const uint32_t spills = copy.spilling() ? 1 : 0;
      if (copy.leases == 0 && copy.readers == spills &&
          copy.state != Residency::kFilling) {
        continue;
      }
      return absl::FailedPreconditionError(absl::StrCat(
          name, "/", group.group->name, " is ",
          copy.leases > 0 ? "leased " : "being copied ",
          node_.names.On(place.at), hint("sessions", "who holds leases")));
    }
  }
  return absl::OkStatus();
}

}  // namespace hoistd
