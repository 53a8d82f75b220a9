#include "daemon/rpc/explain_convert.h"

#include <algorithm>

#include "daemon/convert/types_convert.h"

namespace hoistd {
namespace {

pb::Keeper::By ByToProto(Keeper::By by) {
  switch (by) {  // No default: a new one must fail to compile here.
    case Keeper::By::kLease:
      return pb::Keeper::BY_LEASE;
    case Keeper::By::kPin:
      return pb::Keeper::BY_PIN;
    case Keeper::By::kResident:
      return pb::Keeper::BY_RESIDENT;
    case Keeper::By::kHold:
      return pb::Keeper::BY_HOLD;
    case Keeper::By::kStream:
      return pb::Keeper::BY_STREAM;
    case Keeper::By::kWait:
      return pb::Keeper::BY_WAIT;
    case Keeper::By::kCopying:
      return pb::Keeper::BY_COPYING;
    case Keeper::By::kOnlyCopy:
      return pb::Keeper::BY_ONLY_COPY;
  }
  return pb::Keeper::BY_UNSPECIFIED;
}

uint64_t Milliseconds(absl::Duration duration) {
  return static_cast<uint64_t>(
      std::max<int64_t>(0, absl::ToInt64Milliseconds(duration)));
}

void KeeperToProto(const Keeper& keeper, pb::Keeper* out) {
  out->set_by(ByToProto(keeper.by));
  out->set_session_id(keeper.session.number());
  out->set_plan_id(keeper.plan.number());
  out->set_client_name(keeper.client_name);
}

void CopyToProto(const CopyExplanation& copy, absl::Time now,
                 pb::CopyExplanation* out) {
  out->set_tier(TierToProto(copy.at.tier));
  out->set_device(copy.at.device.number());
  out->set_residency(ResidencyToProto(copy.residency));
  for (const Keeper& keeper : copy.keepers) {
    KeeperToProto(keeper, out->add_keepers());
  }
  out->set_may_leave(copy.may_leave);
  out->set_free_bytes(copy.free_bytes);
  out->set_before_bytes(copy.before_bytes);
  out->set_idle_ms(Milliseconds(copy.since_use));
  out->set_use_is_known(copy.until_use.has_value());
  out->set_until_use_ms(
      Milliseconds(copy.until_use.value_or(absl::ZeroDuration())));
  if (copy.bring.has_value()) {
    out->set_from(TierToProto(copy.from));
    out->set_bring_us(
        static_cast<uint64_t>(absl::ToInt64Microseconds(*copy.bring)));
  }
  if (copy.left.has_value()) {
    out->set_left(copy.left->why == Leaving::Why::kByAdmin
                      ? pb::CopyExplanation::LEFT_BY_ADMIN
                      : pb::CopyExplanation::LEFT_EVICTED);
    out->set_left_ms(Milliseconds(now - copy.left->at));
  }
  out->set_blocked(copy.blocked);
}

}  // namespace

void ExplanationToProto(const ModelExplanation& explanation, absl::Time now,
                        pb::ExplainResponse* out) {
  out->set_model(explanation.model);
  out->set_published(explanation.published);
  for (const std::string& file : explanation.files) out->add_files(file);
  for (const GroupExplanation& group : explanation.groups) {
    pb::GroupExplanation& to = *out->add_groups();
    to.set_name(group.name);
    to.set_index(group.index.number());
    to.set_image_bytes(group.image_bytes);
    for (const CopyExplanation& copy : group.copies) {
      CopyToProto(copy, now, to.add_copies());
    }
    to.set_lost(group.lost);
  }
}

}  // namespace hoistd
