// Grants: pieces that workers copy themselves, with a place in flight.
#include <algorithm>
#include <vector>

#include "daemon/link/link.h"

namespace hoistd {

void Link::Give(LinkParty party, uint64_t bytes, absl::Time now) {
  Member& member = members_.at(party);
  member.granted += bytes;
  const uint64_t counts = std::max(bytes, kLeastGrantBytes);
  share_.Charge(party, counts, now);
  Count(party, counts);
  uint64_t beside = 0;
  for (const Activity& of : activity_) beside += of.bytes_under_way;
  const absl::Duration takes = absl::Seconds(double(beside) / meter_.Rate());
  grants_.push_back({party, member.granted, counts, now + kGrantSlack * takes});
  meter_.SetShared(true, now);
  if (gaps_.on()) gaps_.Began(counts, meter_.Rate());
}

bool Link::TakeGrants(absl::Time now) {
  std::vector<Grant> left;
  std::vector<Grant> ended;
  for (const Grant& grant : grants_) {
    const bool done = members_.at(grant.party).grants->done() >= grant.end;
    (done || now >= grant.due ? ended : left).push_back(grant);
  }
  if (ended.empty()) return false;
  grants_ = std::move(left);
  for (const Grant& grant : ended) {
    const bool done = members_.at(grant.party).grants->done() >= grant.end;
    EndGrant(grant,
             done ? absl::OkStatus()
                  : absl::DeadlineExceededError("a grant was not used in time"),
             now);
  }
  return true;
}

void Link::EndGrants(std::optional<LinkParty> of, const absl::Status& why,
                     absl::Time now) {
  for (size_t i = 0; i < grants_.size();) {
    if (of.has_value() && grants_[i].party != *of) {
      ++i;
      continue;
    }
    const Grant grant = grants_[i];
    grants_.erase(grants_.begin() + static_cast<ptrdiff_t>(i));
    EndGrant(grant, why, now);
  }
}

// The grant is already removed from grants_.
void Link::EndGrant(const Grant& grant, const absl::Status& status,
                    absl::Time now) {
  Activity& activity = activity_[static_cast<size_t>(grant.party.of)];
  --activity.under_way;
  activity.bytes_under_way -= grant.bytes;
  activity.ended = now;
  if (grants_.empty()) meter_.SetShared(false, now);
  Member& member = members_.at(grant.party);
  --member.under_way;
  member.customer->Ended(status, now);
}

absl::Time Link::FirstDue() const {
  absl::Time first = absl::InfiniteFuture();
  for (const Grant& grant : grants_) first = std::min(first, grant.due);
  return first;
}

}  // namespace hoistd
