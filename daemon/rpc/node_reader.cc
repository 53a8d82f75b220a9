#include "daemon/rpc/node_reader.h"

#include <unistd.h>

#include <algorithm>
#include <map>
#include <utility>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "daemon/base/check.h"
#include "daemon/base/status.h"
#include "daemon/convert/types_convert.h"
#include "daemon/core/pool_policy.h"
#include "daemon/model/model_name.h"
#include "daemon/model/published_group.h"

namespace hoistd {
namespace {

uint64_t WholeMilliseconds(absl::Duration duration) {
  const int64_t ms = absl::ToInt64Milliseconds(duration);
  return ms < 0 ? 0 : static_cast<uint64_t>(ms);
}

// Empty: the session is over.
std::string ClientOf(const NodeBooks& node, SessionId session) {
  const SessionBook::Session* found = node.tenure.sessions().Find(session);
  return found == nullptr ? "" : found->args.client_name;
}

// Empty: the model is forgotten.
std::string NameOf(const NodeBooks& node, ModelId model) {
  const ModelEntry* found = node.copies.FindModel(model);
  return found == nullptr ? "" : found->model->spec->name;
}

pb::Loan::Cause CauseOf(Loan::Why why) {
  switch (why) {
    case Loan::Why::kNeed:
      return pb::Loan::CAUSE_NEED;
    case Loan::Why::kAdmin:
      return pb::Loan::CAUSE_ADMIN;
    case Loan::Why::kIdle:
      return pb::Loan::CAUSE_IDLE;
    case Loan::Why::kGrowth:
      return pb::Loan::CAUSE_GROWTH;
    case Loan::Why::kHeadroom:
      return pb::Loan::CAUSE_HEADROOM;
  }
  return pb::Loan::CAUSE_UNSPECIFIED;
}

void SetTier(const TierUse& tier, pb::TierStatus* out) {
  out->set_tier(TierToProto(tier.at.tier));
  out->set_device(tier.at.device.number());
  out->set_capacity_bytes(tier.capacity_bytes);
  out->set_used_bytes(tier.used_bytes);
  out->set_leased_bytes(tier.leased_bytes);
  out->set_pinned_bytes(tier.pinned_bytes);
  out->set_largest_free_bytes(tier.largest_free_bytes);
  out->set_shared_bytes(tier.shared_bytes);
  out->set_doubled_bytes(tier.doubled_bytes);
  out->set_unsaved_bytes(tier.unsaved_bytes);
  out->set_allocated_bytes(tier.allocated_bytes);
  out->set_arena_bytes(tier.arena_bytes);
  out->set_kept_arena_bytes(tier.kept_arena_bytes);
  out->set_full_ms(WholeMilliseconds(tier.full_for));
  for (const Holder& holder : tier.holders) {
    pb::Holder* to = out->add_holders();
    to->set_name(holder.name);
    to->set_bytes(holder.bytes);
  }
}

void SetCounters(const Counters& counters, pb::Counters* out) {
  const google::protobuf::Descriptor& fields = *out->GetDescriptor();
  for (const CounterRow& row : kCounterTable) {
    const auto* const field = fields.FindFieldByName(row.field);
    HOIST_CHECK(field != nullptr);
    out->GetReflection()->SetUInt64(out, field, counters.*row.value);
  }
  out->set_longest_event_us(
      static_cast<uint64_t>(absl::ToInt64Microseconds(counters.longest_event)));
}

void SetLane(const LaneStats& lane, pb::PlanStatus* out) {
  ShareToProto(lane.share, out->mutable_share());
  out->set_copied_bytes(lane.copied_bytes);
  out->set_bytes_per_second(lane.bytes_per_second);
  out->set_loads(lane.loads);
  out->set_served_in_place(lane.served_in_place);
  out->set_skipped(lane.skipped);
  out->set_wasted_loads(lane.wasted_loads);
  out->set_host_waits(lane.host_waits);
  out->set_captured(lane.captured);
}

void AddCopy(TierAt at, Residency residency, const Copy& copy,
             pb::GroupStatus* out) {
  pb::GroupStatus::Copy* to = out->add_copies();
  to->set_tier(TierToProto(at.tier));
  to->set_device(at.device.number());
  to->set_residency(ResidencyToProto(residency));
  to->set_leases(copy.leases);
  to->set_pinned(copy.pinned);
}

void SetGroup(const GroupEntry& entry, GroupIndex index, bool pageable,
              pb::GroupStatus* out) {
  const Group& group = *entry.group;
  out->set_name(group.name);
  out->set_index(index.number());
  out->set_image_bytes(group.image_bytes);
  out->set_tensors(static_cast<uint32_t>(group.tensors.size()));
  for (std::string& type : BlockTypesOf(group)) {
    out->add_block_types(std::move(type));
  }
  for (const auto& [place, copy] : entry.copies) {
    if (copy.state != Residency::kAbsent) {
      AddCopy(place.at, copy.state, copy, out);
    }
  }
  if (pageable) AddCopy(OnPageable(), Residency::kPresent, Copy(), out);
  if (entry.spilled.has_value()) {
    AddCopy(OnDisk(), Residency::kPresent, Copy(), out);
  }
  if (!entry.lost.ok()) AddCopy(OnDisk(), Residency::kLost, Copy(), out);
}

}  // namespace

void NodeReader::Link(const LinkStats& link, pb::LinkStatus* out) const {
  out->set_device(link.device.number());
  out->set_plan_bytes(link.plan_bytes);
  out->set_lease_bytes(link.lease_bytes);
  out->set_background_bytes(link.background_bytes);
  out->set_bytes_per_second(link.bytes_per_second);
  out->set_load_max_bytes_per_second(link.load_max_bytes_per_second);
  out->set_read_bytes_per_second(link.read_bytes_per_second);
  out->set_own_bytes(link.own_bytes);
  out->set_own_read_bytes(link.own_read_bytes);
  for (const PermitStats& permit : view_.permits[link.device.number()]) {
    pb::PermitStatus* to = out->add_permits();
    to->set_id(permit.id.number());
    to->set_session_id(permit.session.number());
    to->set_client_name(ClientOf(node_, permit.session));
    ShareToProto(permit.share, to->mutable_share());
    to->set_copied_bytes(permit.copied_bytes);
    to->set_read_bytes(permit.read_bytes);
    to->set_grants(permit.grants);
    to->set_late_grants(permit.late);
  }
}

void NodeReader::Status(const NodeFacts& facts, const NodeNotes& notes,
                        pb::NodeStatus* out) const {
  out->set_version(facts.version);
  out->set_pid(static_cast<uint32_t>(getpid()));
  out->set_uptime_ms(WholeMilliseconds(view_.now - facts.started));
  out->set_draining(node_.tenure.draining());
  for (const DeviceView& device : facts.devices) {
    DeviceToProto(device, out->add_devices());
  }
  for (const TierUse& tier : NodePicture(node_).Tiers(view_.now)) {
    SetTier(tier, out->add_tiers());
  }
  WithheldToProto(node_, out->mutable_withheld());
  for (const LinkStats& link : view_.engine.links) Link(link, out->add_links());
  out->mutable_io()->set_engine(facts.io.engine);
  out->mutable_io()->set_direct(facts.direct_io);
  out->mutable_io()->set_registered_buffers(facts.io.registered_buffers);
  for (const std::string& fallback : facts.io.fallbacks) {
    out->mutable_io()->add_fallbacks(fallback);
  }
  SetCounters(view_.counters, out->mutable_counters());
  const SessionBook& sessions = node_.tenure.sessions();
  out->set_sessions(static_cast<uint32_t>(sessions.all().size()));
  out->set_models(static_cast<uint32_t>(node_.copies.models().size()));
  out->set_leases(static_cast<uint32_t>(sessions.lease_count()));
  for (const std::string& note : notes.notes) out->add_notes(note);
  out->set_dropped_notes(notes.dropped);
}

void NodeReader::Summary(const ModelEntry& entry, pb::ModelSummary* out) const {
  const Model& model = *entry.model;
  const ModelSpec& spec = *model.spec;
  out->set_id(model.id.number());
  out->set_name(spec.name);
  const Fingerprint fingerprint = FingerprintOf(ContentOf(spec));
  out->set_fingerprint(fingerprint.data(), fingerprint.size());
  out->set_readers(ReadersToProto(model.readers));
  out->set_owner_uid(model.owner.number());
  out->set_owner_tenant(std::string(model.owner.tenant()));
  const uint32_t missing = entry.missing();
  out->set_groups(static_cast<uint32_t>(entry.groups.size()) - missing);
  out->set_missing_groups(missing);
  out->set_image_bytes(spec.image_bytes);
  out->set_published(spec.published);
  out->set_source(spec.published ? "published"
                                 : absl::StrJoin(spec.files, ", "));
  uint32_t tensors = 0;
  uint64_t bytes[4] = {};  // By Tier.
  for (uint32_t g = 0; g < entry.groups.size(); ++g) {
    const GroupEntry& group = entry.groups[g];
    if (IsMissing(*group.group)) continue;
    tensors += static_cast<uint32_t>(group.group->tensors.size());
    const uint64_t image = group.group->image_bytes;
    for (const auto& [place, copy] : group.copies) {
      if (copy.usable()) bytes[static_cast<int>(place.at.tier)] += image;
    }
    if (node_.copies.pageable().Has({model.id, GroupIndex(g)})) {
      bytes[static_cast<int>(Tier::kPageable)] += image;
    }
    if (group.spilled.has_value()) {
      bytes[static_cast<int>(Tier::kDisk)] += image;
    }
  }
  out->set_tensors(tensors);
  out->set_device_bytes(bytes[static_cast<int>(Tier::kDevice)]);
  out->set_host_bytes(bytes[static_cast<int>(Tier::kHost)]);
  out->set_pageable_bytes(bytes[static_cast<int>(Tier::kPageable)]);
  out->set_disk_bytes(bytes[static_cast<int>(Tier::kDisk)]);
}

void NodeReader::Models(pb::ListModelsResponse* out) const {
  for (const auto& [id, entry] : node_.copies.models()) {
    Summary(*entry, out->add_models());
  }
}

absl::StatusOr<const ModelEntry*> NodeReader::FindModel(
    const Peer& asker, const std::string& name) const {
  for (const OwnedName& meant : MeantBy(asker.uid, name)) {
    const ModelEntry* entry = node_.models.Named(meant.owner, meant.name);
    if (entry != nullptr) return entry;
  }
  return absl::NotFoundError(absl::StrCat(
      "no model \"", name,
      "\" of yours or root's; `hoistctl models` lists "
      "what there is; another user's is written UID:NAME, a tenant's "
      "TENANT:NAME"));
}

absl::Status NodeReader::Groups(const Peer& asker, const std::string& model,
                                pb::ListGroupsResponse* out) const {
  HOIST_ASSIGN_OR_RETURN(const ModelEntry* const entry,
                         FindModel(asker, model));
  for (uint32_t g = 0; g < entry->groups.size(); ++g) {
    if (IsMissing(*entry->groups[g].group)) continue;
    const GroupKey key = {entry->model->id, GroupIndex(g)};
    SetGroup(entry->groups[g], key.group, node_.copies.pageable().Has(key),
             out->add_groups());
  }
  return absl::OkStatus();
}

void NodeReader::Session(SessionId id, pb::SessionStatus* out) const {
  const SessionBook::Session* session = node_.tenure.sessions().Find(id);
  if (session == nullptr) return;
  out->set_id(id.number());
  out->set_client_name(session->args.client_name);
  out->set_pid(static_cast<uint32_t>(session->args.peer.pid));
  out->set_uid(session->uid().number());
  out->set_tenant(std::string(session->uid().tenant()));
  out->set_age_ms(WholeMilliseconds(view_.now - session->opened));
  out->set_leases(static_cast<uint32_t>(session->leases.size()));
  uint64_t leased = 0;
  for (const LeaseId lease : session->leases) {
    leased += node_.copies.BytesOf(
        node_.tenure.sessions().FindLease(lease)->copy.key);
  }
  out->set_leased_bytes(leased);
  out->set_device_budget_bytes(session->args.device_budget_bytes);
  out->set_waiting(session->waiting);
  out->set_via(session->args.peer.via);
  out->set_plans(static_cast<uint32_t>(node_.tenure.plans().LiveOf(id).size()));
  uint64_t arenas = 0;
  for (const ArenaId arena : node_.arenas.Of(id)) {
    out->set_arenas(out->arenas() + 1);
    arenas += node_.arenas.At(arena).bytes;
  }
  out->set_arena_bytes(arenas);
}

void NodeReader::Sessions(const Peer& asker,
                          pb::ListSessionsResponse* out) const {
  for (const auto& [id, session] : node_.tenure.sessions().all()) {
    if (!asker.admin && session.uid() != asker.uid) continue;
    Session(id, out->add_sessions());
  }
}

void NodeReader::Plan(const StandingPlan& plan, pb::PlanStatus* out) const {
  const PlanGrant& grant = plan.grant;
  out->set_id(grant.id.number());
  out->set_session_id(plan.session.number());
  out->set_client_name(ClientOf(node_, plan.session));
  out->set_model(NameOf(node_, grant.model));
  out->set_device(grant.device.number());
  out->set_budget_bytes(grant.budget_bytes);
  out->set_resident_bytes(grant.resident_bytes);
  out->set_ring_bytes(grant.ring_bytes);
  out->set_streamed_bytes(grant.streamed_bytes);
  uint64_t held = 0;
  for (const GroupIndex group : plan.held) {
    held += node_.copies.SpaceOf({grant.model, group});
  }
  out->set_held_bytes(held);
  out->set_groups(static_cast<uint32_t>(grant.groups.size()));
  out->set_streamed_groups(static_cast<uint32_t>(std::count_if(
      grant.groups.begin(), grant.groups.end(),
      [](const PlannedGroup& group) { return !group.resident; })));
  out->set_lead(grant.lead);
}

void NodeReader::Plans(const Peer& asker, pb::ListPlansResponse* out) const {
  std::map<PlanId, const LaneStats*> lanes;
  for (const LaneStats& lane : view_.lanes) lanes[lane.plan] = &lane;
  const auto sees = [&](SessionId id) {
    const SessionBook::Session* session = node_.tenure.sessions().Find(id);
    return asker.admin || (session != nullptr && session->uid() == asker.uid);
  };
  for (const auto& [id, plan] : node_.tenure.plans().standing()) {
    if (plan.ended || !sees(plan.session)) continue;
    pb::PlanStatus* to = out->add_plans();
    Plan(plan, to);
    const auto lane = lanes.find(id);  // None: nothing is streamed.
    SetLane(lane == lanes.end() ? LaneStats() : *lane->second, to);
  }
  for (const auto& [lender, loan] : node_.tenure.reclaim().loans().all()) {
    if (!loan.is_shown() || !sees(lender.session)) continue;
    LoanToProto(node_, lender, loan, view_.now, sees(loan.to),
                out->add_loans());
  }
}

void LoanToProto(const NodeBooks& node, const LoanKey& lender, const Loan& loan,
                 absl::Time now, bool shows_to, pb::Loan* out) {
  out->set_session_id(lender.session.number());
  out->set_client(ClientOf(node, lender.session));
  out->set_model(NameOf(node, lender.model));
  out->set_device(lender.device.number());
  out->set_bytes(loan.bytes);
  out->set_cause(CauseOf(loan.why));
  out->set_lent(loan.lent);
  out->set_age_ms(WholeMilliseconds(now - loan.since));
  if (!shows_to) return;
  out->set_to_session_id(loan.to.number());
  out->set_to_client(ClientOf(node, loan.to));
  out->set_to_model(NameOf(node, loan.to_model));
}

void WithheldToProto(
    const NodeBooks& node,
    google::protobuf::RepeatedPtrField<pb::WithheldPool>* out) {
  for (uint32_t d = 0; d < node.space.devices(); ++d) {
    const PoolBounds& bounds = node.space.device(DeviceIndex(d)).bounds();
    if (bounds.withheld() == 0) continue;
    pb::WithheldPool* to = out->Add();
    to->set_device(d);
    to->set_bytes(bounds.withheld());
    to->set_headroom_bytes(bounds.headroom());
    to->set_growth_bytes(
        std::min(PoolPolicy::StepOf(bounds.headroom()), bounds.withheld()));
    to->set_growth_ms(WholeMilliseconds(PoolPolicy::kCalm));
    to->set_spared_bytes(bounds.spared());
  }
}

}  // namespace hoistd
