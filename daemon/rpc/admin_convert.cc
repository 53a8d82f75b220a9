#include "daemon/rpc/admin_convert.h"

#include <optional>

#include "absl/strings/str_cat.h"
#include "daemon/base/status.h"
#include "daemon/convert/types_convert.h"

namespace hoistd {
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

void ProgressToProto(const LoadProgress& progress, pb::LoadProgress* out) {
  out->set_done_bytes(progress.done_bytes);
  out->set_total_bytes(progress.total_bytes);
  out->set_done_groups(progress.done_groups);
  out->set_total_groups(progress.total_groups);
  out->set_left_out_groups(progress.left_out_groups);
  out->set_left_out_reason(progress.left_out_reason);
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
