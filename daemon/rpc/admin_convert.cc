#include "daemon/rpc/admin_convert.h"

#include <unistd.h>

#include <optional>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "daemon/base/check.h"
#include "daemon/base/status.h"
#include "daemon/convert/types_convert.h"
#include "daemon/core/counters.h"
#include "daemon/model/model_name.h"

namespace hoistd {
namespace {

uint64_t WholeMilliseconds(absl::Duration duration) {
  const int64_t ms = absl::ToInt64Milliseconds(duration);
  return ms < 0 ? 0 : static_cast<uint64_t>(ms);
}

void TierStatusToProto(const TierSnapshot& tier, pb::TierStatus* out) {
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

void LinkStatusToProto(const LinkSnapshot& link, pb::LinkStatus* out) {
  out->set_device(link.device.number());
  out->set_plan_bytes(link.plan_bytes);
  out->set_lease_bytes(link.lease_bytes);
  out->set_background_bytes(link.background_bytes);
  out->set_bytes_per_second(link.bytes_per_second);
  out->set_load_max_bytes_per_second(link.load_max_bytes_per_second);
  out->set_read_bytes_per_second(link.read_bytes_per_second);
  out->set_own_bytes(link.own_bytes);
  out->set_own_read_bytes(link.own_read_bytes);
  for (const PermitSnapshot& permit : link.permits) {
    pb::PermitStatus* to = out->add_permits();
    to->set_id(permit.id.number());
    to->set_session_id(permit.session.number());
    to->set_client_name(permit.client_name);
    ShareToProto(permit.share, to->mutable_share());
    to->set_copied_bytes(permit.copied_bytes);
    to->set_read_bytes(permit.read_bytes);
    to->set_grants(permit.grants);
    to->set_late_grants(permit.late_grants);
  }
}

void CountersToProto(const Counters& counters, pb::Counters* out) {
  const google::protobuf::Descriptor& fields = *out->GetDescriptor();
  for (const CounterRow& row : kCounterTable) {
    const auto* const field = fields.FindFieldByName(row.field);
    HOIST_CHECK(field != nullptr);
    out->GetReflection()->SetUInt64(out, field, counters.*row.value);
  }
  out->set_longest_event_us(
      static_cast<uint64_t>(absl::ToInt64Microseconds(counters.longest_event)));
}

}  // namespace

grpc::Status ToGrpc(const absl::Status& status) {
  if (status.ok()) return grpc::Status::OK;
  std::string message(status.message());
  // Percent-encoding triples a byte at worst.
  constexpr size_t kLongest = 2000;
  if (message.size() > kLongest) {
    size_t end = kLongest;
    while (end > 0 && (message[end] & 0xc0) == 0x80) --end;
    message = message.substr(0, end) + "...";
  }
  return grpc::Status(static_cast<grpc::StatusCode>(status.raw_code()),
                      message);
}

absl::StatusOr<CopySelector> SelectorFromProto(const pb::CopySelector& selector,
                                               TierNeeded tier_needed) {
  CopySelector which;
  HOIST_ASSIGN_OR_RETURN(
      which.model,
      NameFromProto("copies.model", selector.model(), kMaxModelNameBytes + 16));
  if (!selector.group().empty()) {
    HOIST_ASSIGN_OR_RETURN(
        which.group,
        NameFromProto("copies.group", selector.group(), kMaxGroupNameBytes));
  }
  if (selector.tier() == pb::TIER_UNSPECIFIED &&
      tier_needed == TierNeeded::kNo) {
    return which;
  }
  absl::StatusOr<TierAt> at = TierFromProto(selector.tier(), selector.device());
  if (!at.ok()) return Annotate(at.status(), "copies");
  if (at->tier == Tier::kDisk) {
    return absl::InvalidArgumentError(
        "copies.tier must be TIER_DEVICE or TIER_HOST: copies on disk are "
        "neither pinned nor evicted; Evict with `forget` removes them");
  }
  which.at = *at;
  return which;
}

std::string ShareOfText(const pb::SetShareRequest& in) {
  if (in.has_loads_of_device()) {
    return absl::StrCat("loads of device ", in.loads_of_device());
  }
  if (in.has_permit_id()) return absl::StrCat("permit ", in.permit_id());
  return absl::StrCat("plan ", in.plan_id());
}

absl::StatusOr<ShareOf> ShareOfFromProto(const pb::SetShareRequest& in) {
  if (in.has_plan_id()) return ShareOf(PlanId(in.plan_id()));
  if (in.has_loads_of_device()) {
    return ShareOf(DeviceIndex(in.loads_of_device()));
  }
  if (in.has_permit_id()) return ShareOf(PermitId(in.permit_id()));
  return absl::InvalidArgumentError(
      "whose share is to change: set plan_id, permit_id or loads_of_device");
}

absl::StatusOr<ShareChange> ShareChangeFromProto(const pb::ShareChange& in) {
  ShareChange change;
  if (in.change_weight()) change.weight = in.weight();
  if (in.change_priority()) change.priority = in.priority();
  if (in.change_max_bytes_per_second()) {
    change.max_bytes_per_second = in.max_bytes_per_second();
  }
  if (!in.change_weight() && !in.change_priority() &&
      !in.change_max_bytes_per_second()) {
    return absl::InvalidArgumentError(
        "nothing is to change: set weight, priority or max_bytes_per_second");
  }
  HOIST_RETURN_IF_ERROR(CheckShare(change.AppliedTo(ShareOptions())));
  return change;
}

absl::StatusOr<const ModelSnapshot*> FindModel(const NodeSnapshot& snapshot,
                                               const Peer& asker,
                                               const std::string& name) {
  for (const OwnedName& meant : MeantBy(asker.uid, name)) {
    for (const ModelSnapshot& model : snapshot.models) {
      if (model.owner == meant.owner && model.name == meant.name) return &model;
    }
  }
  return absl::NotFoundError(absl::StrCat(
      "no model \"", name,
      "\" of yours or root's; `hoistctl models` lists "
      "what there is; another user's is written UID:NAME, a tenant's "
      "TENANT:NAME"));
}

void StatusToProto(const NodeFacts& facts, const NodeNotes& notes,
                   absl::Time now, const NodeSnapshot& snapshot,
                   pb::NodeStatus* out) {
  out->set_version(facts.version);
  out->set_pid(static_cast<uint32_t>(getpid()));
  out->set_uptime_ms(WholeMilliseconds(now - facts.started));
  out->set_draining(snapshot.draining);
  for (const DeviceView& device : facts.devices) {
    DeviceToProto(device, out->add_devices());
  }
  for (const TierSnapshot& tier : snapshot.tiers) {
    TierStatusToProto(tier, out->add_tiers());
  }
  for (const LinkSnapshot& link : snapshot.links) {
    LinkStatusToProto(link, out->add_links());
  }
  out->mutable_io()->set_engine(facts.io.engine);
  out->mutable_io()->set_direct(facts.direct_io);
  out->mutable_io()->set_registered_buffers(facts.io.registered_buffers);
  for (const std::string& fallback : facts.io.fallbacks) {
    out->mutable_io()->add_fallbacks(fallback);
  }
  CountersToProto(snapshot.counters, out->mutable_counters());
  uint32_t leases = 0;
  for (const SessionSnapshot& session : snapshot.sessions) {
    leases += session.leases;
  }
  out->set_sessions(static_cast<uint32_t>(snapshot.sessions.size()));
  out->set_models(static_cast<uint32_t>(snapshot.models.size()));
  out->set_leases(leases);
  for (const std::string& note : notes.notes) out->add_notes(note);
  out->set_dropped_notes(notes.dropped);
}

void SummaryToProto(const ModelSnapshot& model, pb::ModelSummary* out) {
  out->set_id(model.id.number());
  out->set_name(model.name);
  out->set_fingerprint(model.fingerprint.data(), model.fingerprint.size());
  out->set_readers(ReadersToProto(model.readers));
  out->set_owner_uid(model.owner.number());
  out->set_owner_tenant(std::string(model.owner.tenant()));
  out->set_groups(static_cast<uint32_t>(model.groups.size()));
  out->set_missing_groups(model.missing_groups);
  out->set_image_bytes(model.image_bytes);
  out->set_published(model.published);
  out->set_source(model.published ? "published"
                                  : absl::StrJoin(model.files, ", "));
  uint32_t tensors = 0;
  uint64_t bytes[3] = {};  // By Tier.
  for (const GroupSnapshot& group : model.groups) {
    tensors += group.tensors;
    for (const CopySnapshot& copy : group.copies) {
      const bool there = copy.residency == Residency::kPresent ||
                         copy.residency == Residency::kSpilling;
      if (there) bytes[static_cast<int>(copy.at.tier)] += group.image_bytes;
    }
  }
  out->set_tensors(tensors);
  out->set_device_bytes(bytes[static_cast<int>(Tier::kDevice)]);
  out->set_host_bytes(bytes[static_cast<int>(Tier::kHost)]);
  out->set_disk_bytes(bytes[static_cast<int>(Tier::kDisk)]);
}

void GroupStatusToProto(const GroupSnapshot& group, pb::GroupStatus* out) {
  out->set_name(group.name);
  out->set_index(group.index.number());
  out->set_image_bytes(group.image_bytes);
  out->set_tensors(group.tensors);
  out->mutable_block_types()->Assign(group.block_types.begin(),
                                     group.block_types.end());
  for (const CopySnapshot& copy : group.copies) {
    pb::GroupStatus::Copy* to = out->add_copies();
    to->set_tier(TierToProto(copy.at.tier));
    to->set_device(copy.at.device.number());
    to->set_residency(ResidencyToProto(copy.residency));
    to->set_leases(copy.leases);
    to->set_pinned(copy.pinned);
  }
}

void SessionToProto(const SessionSnapshot& session, pb::SessionStatus* out) {
  out->set_id(session.id.number());
  out->set_client_name(session.client_name);
  out->set_pid(static_cast<uint32_t>(session.pid));
  out->set_uid(session.uid.number());
  out->set_tenant(std::string(session.uid.tenant()));
  out->set_age_ms(WholeMilliseconds(session.age));
  out->set_leases(session.leases);
  out->set_leased_bytes(session.leased_bytes);
  out->set_device_budget_bytes(session.device_budget_bytes);
  out->set_waiting(session.waiting);
  out->set_via(session.via);
  out->set_plans(session.plans);
  out->set_arenas(session.arenas);
  out->set_arena_bytes(session.arena_bytes);
}

void PlanStatusToProto(const PlanSnapshot& plan, pb::PlanStatus* out) {
  out->set_id(plan.id.number());
  out->set_session_id(plan.session.number());
  out->set_client_name(plan.client_name);
  out->set_model(plan.model);
  out->set_device(plan.device.number());
  out->set_budget_bytes(plan.budget_bytes);
  out->set_resident_bytes(plan.resident_bytes);
  out->set_ring_bytes(plan.ring_bytes);
  out->set_streamed_bytes(plan.streamed_bytes);
  out->set_held_bytes(plan.held_bytes);
  out->set_groups(plan.groups);
  out->set_streamed_groups(plan.streamed_groups);
  out->set_lead(plan.lead);
  ShareToProto(plan.share, out->mutable_share());
  out->set_copied_bytes(plan.copied_bytes);
  out->set_bytes_per_second(plan.bytes_per_second);
  out->set_loads(plan.loads);
  out->set_served_in_place(plan.served_in_place);
  out->set_skipped(plan.skipped);
  out->set_wasted_loads(plan.wasted_loads);
  out->set_host_waits(plan.host_waits);
  out->set_captured(plan.captured);
}

void ProgressToProto(const LoadProgress& progress, pb::LoadProgress* out) {
  out->set_done_bytes(progress.done_bytes);
  out->set_total_bytes(progress.total_bytes);
  out->set_done_groups(progress.done_groups);
  out->set_total_groups(progress.total_groups);
  out->set_left_out_groups(progress.left_out_groups);
}

void CheckProgressToProto(const CheckProgress& progress,
                          pb::CheckProgress* out) {
  out->set_done_groups(progress.done_groups);
  out->set_total_groups(progress.total_groups);
  out->set_read_bytes(progress.read_bytes);
  out->set_damaged(progress.damaged);
  for (const CheckFinding& finding : progress.findings) {
    pb::CheckFinding* to = out->add_findings();
    to->set_group(finding.group);
    to->set_tier(TierToProto(finding.at.tier));
    to->set_device(finding.at.device.number());
    to->set_what(finding.what);
  }
}

void EventToProto(const NodeEvent& event, absl::Time at, pb::Event* out) {
  out->set_at_unix_ms(static_cast<uint64_t>(absl::ToUnixMillis(at)));
  out->set_kind(ToString(event.kind));
  out->set_model(event.model);
  out->set_group(event.group);
  if (event.at.has_value()) {
    out->set_tier(TierToProto(event.at->tier));
    out->set_device(event.at->device.number());
  }
  out->set_session_id(event.session.number());
  out->set_bytes(event.bytes);
  out->set_detail(event.detail);
}

}  // namespace hoistd
