#include "daemon/core/node_explainer.h"

#include <algorithm>

#include "absl/strings/str_cat.h"
#include "daemon/base/status.h"

namespace hoistd {
namespace {

using By = Keeper::By;

// Any asker: wants space at once, and spares no model.
SpaceClaim Anybody(TierAt at) { return {.copy = {{}, {at}}}; }

absl::Duration TimeFor(uint64_t bytes, double bytes_per_second) {
  return absl::Seconds(static_cast<double>(bytes) / bytes_per_second);
}

}  // namespace

NodeExplainer::NodeExplainer(const Node& node, absl::Time now)
    : node_(node.books()), now_(now) {
  for (const TierAt at : Tiers()) Climb(at);
  FindLeases();
}

std::vector<TierAt> NodeExplainer::Tiers() const {
  std::vector<TierAt> tiers;
  for (uint32_t d = 0; d < node_.devices.size(); ++d) {
    tiers.push_back(OnDevice(DeviceIndex(d)));
  }
  tiers.push_back(OnHost());
  return tiers;
}

// Bytes shared on the host count for their first user.
uint64_t NodeExplainer::SpaceAt(const CopyRef& ref) const {
  if (ref.place == kHost && node_.space.parts().Has(ref.key)) {
    return node_.space.parts().OwnSpace(ref.key);
  }
  return node_.copies.SpaceOf(ref.key);
}

void NodeExplainer::Climb(TierAt at) {
  Ladder& ladder = ladders_[at];
  const SpaceClaim anybody = Anybody(at);
  for (const auto& [id, model] : node_.copies.models()) {
    for (uint32_t g = 0; g < model->groups.size(); ++g) {
      for (const auto& [place, copy] : model->groups[g].copies) {
        if (place.at != at || copy.state == Residency::kAbsent) continue;
        const CopyRef ref = {{id, GroupIndex(g)}, place};
        const uint64_t bytes = SpaceAt(ref);
        const auto worth = node_.space.ValueOf(ref, bytes, anybody, now_);
        if (worth.has_value()) ladder.emplace_back(*worth, bytes);
      }
    }
  }
  std::sort(ladder.begin(), ladder.end());
  uint64_t below = 0;
  for (auto& [worth, bytes] : ladder) {
    below += std::exchange(bytes, below);
  }
}

void NodeExplainer::FindLeases() {
  for (const auto& [id, session] : node_.tenure.sessions().all()) {
    for (const LeaseId lease : session.leases) {
      std::vector<SessionId>& of =
          leases_[node_.tenure.sessions().FindLease(lease)->copy];
      if (of.empty() || of.back() != id) of.push_back(id);  // Each once.
    }
  }
}

std::string NodeExplainer::NameOf(SessionId session) const {
  const auto* found = node_.tenure.sessions().Find(session);
  return found == nullptr ? std::string() : found->args.client_name;
}

absl::StatusOr<ModelExplanation> NodeExplainer::Explain(
    const Peer& asker, const std::string& model,
    const std::string& group) const {
  CopySelector which;
  which.model = model;
  which.group = group;
  which.at = OnHost();
  which.asker = asker;
  HOIST_ASSIGN_OR_RETURN(
      const std::vector<CopyRef> groups,
      NodePicture(node_).Select(which, /*existing_only=*/false));
  HOIST_ASSIGN_OR_RETURN(const ModelPtr found, node_.tenure.Find(asker, model));
  ModelExplanation explanation;
  explanation.model = found->spec->name;
  explanation.published = found->spec->published;
  explanation.files = found->spec->files;
  for (const CopyRef& ref : groups) {
    explanation.groups.push_back(ExplainGroup(asker, ref.key));
  }
  return explanation;
}

GroupExplanation NodeExplainer::ExplainGroup(const Peer& asker,
                                             GroupKey key) const {
  const GroupEntry& entry = *node_.copies.FindGroup(key);
  GroupExplanation group;
  group.name = entry.group->name;
  group.index = key.group;
  group.image_bytes = entry.group->image_bytes;
  if (!entry.lost.ok()) group.lost = std::string(entry.lost.message());
  for (const TierAt at : Tiers()) {
    // A device may have copies of several kinds.
    std::vector<Place> places;
    for (const auto& [place, copy] : entry.copies) {
      if (place.at == at && copy.state != Residency::kAbsent) {
        places.push_back(place);
      }
    }
    if (places.empty()) places.push_back({at});
    for (const Place& place : places) {
      group.copies.push_back(ExplainPlace(asker, {key, place}));
    }
  }
  group.copies.push_back(ExplainDisk(entry));
  return group;
}

CopyExplanation NodeExplainer::ExplainPlace(const Peer& asker,
                                            const CopyRef& ref) const {
  CopyExplanation out;
  out.at = ref.place.at;
  out.until_use = node_.tenure.orders().UntilUse(ref.key);
  const GroupEntry& entry = *node_.copies.FindGroup(ref.key);
  const auto found = entry.copies.find(ref.place);
  if (found != entry.copies.end()) {
    const Copy& copy = found->second;
    out.residency = copy.state;
    if (copy.state == Residency::kAbsent) {
      out.left = copy.left;
    } else {
      out.since_use = now_ - copy.last_use;
      AddKeepers(ref, copy, out);
    }
  }
  AddPlans(ref, out);
  AddWaits(asker, ref, out);
  AddLeaving(ref, out);
  AddBringing(ref, out);
  return out;
}

// Files are not for hoist to move.
CopyExplanation NodeExplainer::ExplainDisk(const GroupEntry& group) const {
  CopyExplanation out;
  out.at = OnDisk();
  out.residency = group.on_disk() ? Residency::kPresent : Residency::kAbsent;
  return out;
}

void NodeExplainer::AddKeepers(const CopyRef& ref, const Copy& copy,
                               CopyExplanation& out) const {
  if (const auto leases = leases_.find(ref); leases != leases_.end()) {
    for (const SessionId session : leases->second) {
      out.keepers.push_back({By::kLease, session, PlanId(), NameOf(session)});
    }
  }
  if (copy.pinned) out.keepers.push_back({.by = By::kPin});
  if (!copy.usable() || copy.readers > 0) {
    out.keepers.push_back({.by = By::kCopying});
  }
  if (copy.usable() && !node_.space.Clean(ref) &&
      (ref.place != kHost || !node_.space.MaySpill(now_))) {
    out.keepers.push_back({.by = By::kOnlyCopy});
  }
}

void NodeExplainer::AddPlans(const CopyRef& ref, CopyExplanation& out) const {
  const bool host = ref.place == kHost;
  for (const auto& [id, plan] : node_.tenure.plans().standing()) {
    if (plan.ended || plan.grant.model != ref.key.model) continue;
    if (host) {
      if (!plan.held.contains(ref.key.group)) continue;
      out.keepers.push_back(
          {By::kHold, plan.session, id, NameOf(plan.session)});
      continue;
    }
    if (ref.place.at != OnDevice(plan.grant.device) || ref.place.shared ||
        ref.place.apart) {
      continue;
    }
    for (const PlannedGroup& group : plan.grant.groups) {
      if (group.group != ref.key.group) continue;
      out.keepers.push_back({group.resident ? By::kResident : By::kStream,
                             plan.session, id, NameOf(plan.session)});
    }
  }
}

void NodeExplainer::AddWaits(const Peer& asker, const CopyRef& ref,
                             CopyExplanation& out) const {
  const Need* need = node_.supply.needs().Find(ref);
  if (need == nullptr) return;
  for (const Waiter& waiter : need->waiters) {
    out.keepers.push_back({By::kWait, waiter.session,
                           waiter.hold.value_or(PlanId()),
                           NameOf(waiter.session)});
  }
  if (!need->blocked.why.ok()) {
    out.blocked = NodePicture(node_).TextFor(&asker, need->blocked);
  }
}

void NodeExplainer::AddLeaving(const CopyRef& ref, CopyExplanation& out) const {
  const TierAt at = ref.place.at;
  out.free_bytes = node_.space.CapacityOf(at) - node_.space.UsedOf(at);
  if (out.residency == Residency::kAbsent) return;
  const auto worth = node_.space.ValueOf(ref, SpaceAt(ref), Anybody(at), now_);
  const bool promised =
      at.tier == Tier::kDevice && node_.space.promises(at.device).Promised(ref);
  out.may_leave = worth.has_value() && !promised;
  if (!out.may_leave) return;
  const Ladder& ladder = ladders_.at(at);
  const auto step = std::lower_bound(
      ladder.begin(), ladder.end(), *worth,
      [](const auto& rung, double value) { return rung.first < value; });
  if (step != ladder.end()) out.before_bytes = step->second;
}

void NodeExplainer::AddBringing(const CopyRef& ref,
                                CopyExplanation& out) const {
  const GroupEntry& group = *node_.copies.FindGroup(ref.key);
  const uint64_t bytes = group.group->image_bytes;
  const auto host = group.copies.find(kHost);
  const bool on_host = host != group.copies.end() && host->second.usable();
  absl::Duration bring;
  if (ref.place.at.tier == Tier::kDevice) {
    bring = TimeFor(bytes, node_.options.host_bytes_per_second);
    if (on_host) {
      out.bring = bring;
      out.from = Tier::kHost;
      return;
    }
  }
  if (!group.on_disk()) return;
  out.bring = bring + TimeFor(bytes, node_.options.disk_bytes_per_second);
  out.from = Tier::kDisk;
}

}  // namespace hoistd
