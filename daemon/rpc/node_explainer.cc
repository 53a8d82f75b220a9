#include "daemon/rpc/node_explainer.h"

#include <algorithm>

#include "daemon/base/status.h"
#include "daemon/convert/types_convert.h"
#include "daemon/rpc/admin_convert.h"
#include "daemon/rpc/node_reader.h"

namespace hoistd {
namespace {

// Any asker: wants space at once, and spares no model.
SpaceClaim Anybody(TierAt at) { return {.copy = {{}, {at}}}; }

absl::Duration TimeFor(uint64_t bytes, double bytes_per_second) {
  return absl::Seconds(static_cast<double>(bytes) / bytes_per_second);
}

uint64_t Milliseconds(absl::Duration duration) {
  return static_cast<uint64_t>(
      std::max<int64_t>(0, absl::ToInt64Milliseconds(duration)));
}

void SetBringing(Tier from, absl::Duration bring, pb::CopyExplanation* out) {
  out->set_from(TierToProto(from));
  out->set_bring_us(static_cast<uint64_t>(absl::ToInt64Microseconds(bring)));
}

pb::CopyExplanation::Left LeftToProto(Leaving::Why why) {
  switch (why) {
    case Leaving::Why::kForRoom:
      break;
    case Leaving::Why::kByAdmin:
      return pb::CopyExplanation::LEFT_BY_ADMIN;
    case Leaving::Why::kByWorker:
      return pb::CopyExplanation::LEFT_BY_WORKER;
    case Leaving::Why::kHeadroom:
      return pb::CopyExplanation::LEFT_FOR_HEADROOM;
  }
  return pb::CopyExplanation::LEFT_EVICTED;
}

void SetPlace(TierAt at, Residency residency, pb::CopyExplanation* out) {
  out->set_tier(TierToProto(at.tier));
  out->set_device(at.device.number());
  out->set_residency(ResidencyToProto(residency));
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

void NodeExplainer::AddKeeper(pb::Keeper::By by, SessionId session, PlanId plan,
                              pb::CopyExplanation* out) const {
  pb::Keeper* keeper = out->add_keepers();
  keeper->set_by(by);
  keeper->set_session_id(session.number());
  keeper->set_plan_id(plan.number());
  if (const auto* found = node_.tenure.sessions().Find(session)) {
    keeper->set_client_name(found->args.client_name);
  }
}

absl::Status NodeExplainer::Explain(const Peer& asker, const std::string& model,
                                    const std::string& group,
                                    pb::ExplainResponse* out) const {
  CopySelector which;
  which.model = model;
  which.group = group;
  which.at = OnHost();
  which.asker = asker;
  HOIST_ASSIGN_OR_RETURN(
      const std::vector<CopyRef> groups,
      NodePicture(node_).Select(which, /*existing_only=*/false));
  HOIST_ASSIGN_OR_RETURN(const ModelPtr found, node_.tenure.Find(asker, model));
  out->set_model(found->spec->name);
  out->set_published(found->spec->published);
  for (const std::string& file : found->spec->files) out->add_files(file);
  for (const CopyRef& ref : groups) {
    ExplainGroup(asker, ref.key, out->add_groups());
  }
  for (const auto& [lender, loan] : node_.tenure.reclaim().loans().all()) {
    if (lender.model != found->id && loan.to_model != found->id) continue;
    if (!loan.is_shown()) continue;
    LoanToProto(node_, lender, loan, now_, /*shows_to=*/true, out->add_loans());
  }
  WithheldToProto(node_, out->mutable_withheld());
  return absl::OkStatus();
}

void NodeExplainer::ExplainGroup(const Peer& asker, GroupKey key,
                                 pb::GroupExplanation* out) const {
  const GroupEntry& entry = *node_.copies.FindGroup(key);
  out->set_name(entry.group->name);
  out->set_index(key.group.number());
  out->set_image_bytes(entry.group->image_bytes);
  if (!entry.lost.ok()) out->set_lost(std::string(entry.lost.message()));
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
      ExplainPlace(asker, {key, place}, out->add_copies());
    }
  }
  const bool pageable = node_.copies.pageable().Has(key);
  if (node_.options.pageable_bytes > 0) {
    SetPlace(OnPageable(), pageable ? Residency::kPresent : Residency::kAbsent,
             out->add_copies());
  }
  // Files are not for hoist to move.
  SetPlace(OnDisk(), entry.on_disk() ? Residency::kPresent : Residency::kAbsent,
           out->add_copies());
}

void NodeExplainer::ExplainPlace(const Peer& asker, const CopyRef& ref,
                                 pb::CopyExplanation* out) const {
  SetPlace(ref.place.at, Residency::kAbsent, out);
  if (const auto until = node_.tenure.orders().UntilUse(ref.key)) {
    out->set_use_is_known(true);
    out->set_until_use_ms(Milliseconds(*until));
  }
  const GroupEntry& entry = *node_.copies.FindGroup(ref.key);
  const auto found = entry.copies.find(ref.place);
  const bool there =
      found != entry.copies.end() && found->second.state != Residency::kAbsent;
  if (there) {
    const Copy& copy = found->second;
    out->set_residency(ResidencyToProto(copy.state));
    out->set_idle_ms(Milliseconds(now_ - copy.last_use));
    AddKeepers(ref, copy, out);
  } else if (found != entry.copies.end() && found->second.left.has_value()) {
    const Leaving& left = *found->second.left;
    out->set_left(LeftToProto(left.why));
    out->set_left_ms(Milliseconds(now_ - left.at));
    if (const ModelEntry* model = node_.copies.FindModel(left.room_for)) {
      out->set_left_for(model->model->spec->name);
    }
  }
  AddPlans(ref, out);
  AddWaits(asker, ref, out);
  const TierAt at = ref.place.at;
  out->set_free_bytes(node_.space.CapacityOf(at) - node_.space.UsedOf(at));
  if (there) AddLeaving(ref, out);
  AddBringing(ref, out);
}

void NodeExplainer::AddKeepers(const CopyRef& ref, const Copy& copy,
                               pb::CopyExplanation* out) const {
  if (const auto leases = leases_.find(ref); leases != leases_.end()) {
    for (const SessionId session : leases->second) {
      AddKeeper(pb::Keeper::BY_LEASE, session, PlanId(), out);
    }
  }
  if (copy.pinned) out->add_keepers()->set_by(pb::Keeper::BY_PIN);
  if (!copy.usable() || copy.readers > 0) {
    out->add_keepers()->set_by(pb::Keeper::BY_COPYING);
  }
  if (copy.usable() && !node_.space.Clean(ref) &&
      (ref.place != kHost || !node_.space.MaySpill(now_))) {
    out->add_keepers()->set_by(pb::Keeper::BY_ONLY_COPY);
  }
}

void NodeExplainer::AddPlans(const CopyRef& ref,
                             pb::CopyExplanation* out) const {
  const bool host = ref.place == kHost;
  for (const auto& [id, plan] : node_.tenure.plans().standing()) {
    if (plan.ended || plan.grant.model != ref.key.model) continue;
    if (host) {
      if (!plan.held.contains(ref.key.group)) continue;
      AddKeeper(pb::Keeper::BY_HOLD, plan.session, id, out);
      continue;
    }
    if (ref.place.at != OnDevice(plan.grant.device) || ref.place.shared ||
        ref.place.apart) {
      continue;
    }
    for (const PlannedGroup& group : plan.grant.groups) {
      if (group.group != ref.key.group) continue;
      AddKeeper(
          group.resident ? pb::Keeper::BY_RESIDENT : pb::Keeper::BY_STREAM,
          plan.session, id, out);
    }
  }
}

void NodeExplainer::AddWaits(const Peer& asker, const CopyRef& ref,
                             pb::CopyExplanation* out) const {
  const Need* need = node_.supply.needs().Find(ref);
  if (need == nullptr) return;
  for (const Waiter& waiter : need->waiters) {
    AddKeeper(pb::Keeper::BY_WAIT, waiter.session,
              waiter.hold.value_or(PlanId()), out);
  }
  if (!need->blocked.why.ok()) {
    out->set_blocked(NodePicture(node_).TextFor(&asker, need->blocked));
  }
}

void NodeExplainer::AddLeaving(const CopyRef& ref,
                               pb::CopyExplanation* out) const {
  const TierAt at = ref.place.at;
  const auto worth = node_.space.ValueOf(ref, SpaceAt(ref), Anybody(at), now_);
  const bool promised =
      at.tier == Tier::kDevice && node_.space.promises(at.device).Promised(ref);
  if (!worth.has_value() || promised) return;
  out->set_may_leave(true);
  const Ladder& ladder = ladders_.at(at);
  const auto step = std::lower_bound(
      ladder.begin(), ladder.end(), *worth,
      [](const auto& rung, double value) { return rung.first < value; });
  if (step != ladder.end()) out->set_before_bytes(step->second);
}

void NodeExplainer::AddBringing(const CopyRef& ref,
                                pb::CopyExplanation* out) const {
  const GroupEntry& group = *node_.copies.FindGroup(ref.key);
  const uint64_t bytes = group.group->image_bytes;
  const auto host = group.copies.find(kHost);
  const bool on_host = host != group.copies.end() && host->second.usable();
  absl::Duration bring;
  if (ref.place.at.tier == Tier::kDevice) {
    bring = TimeFor(bytes, node_.options.host_bytes_per_second);
    if (on_host) {
      SetBringing(Tier::kHost, bring, out);
      return;
    }
  }
  if (node_.copies.pageable().Has(ref.key)) {
    return SetBringing(
        Tier::kPageable,
        bring + TimeFor(bytes, node_.options.pageable_bytes_per_second), out);
  }
  if (!group.on_disk()) return;
  SetBringing(Tier::kDisk,
              bring + TimeFor(bytes, node_.options.disk_bytes_per_second), out);
}

}  // namespace hoistd
