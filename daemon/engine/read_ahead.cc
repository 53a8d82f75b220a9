#include "daemon/engine/read_ahead.h"

#include <algorithm>
#include <utility>

namespace hoistd {
namespace {

// Minimum: the next one is read while one is copied.
constexpr size_t kMinDepth = 2;
// Read times vary; a late read stalls the ring.
constexpr size_t kSpareDepth = 2;

// Moving average: seven parts old, one part new.
absl::Duration Blend(absl::Duration old, absl::Duration seen) {
  return (old * 7 + seen) / 8;
}

}  // namespace

ReadAhead::ReadAhead(const PlanGrant& grant, uint64_t host_bytes)
    : order_(grant.lane_order), device_(grant.device), host_bytes_(host_bytes) {
  uint64_t total = 0;
  for (const PlannedGroup& planned : grant.groups) {
    if (planned.resident) continue;
    Group group;
    group.group = planned.group;
    group.bytes = planned.image_bytes;
    groups_.push_back(group);
    total += planned.image_bytes;
  }
  holds_all_ = total <= host_bytes_;
}

std::optional<LaneGroup> ReadAhead::LaneOf(GroupIndex group) const {
  for (uint32_t i = 0; i < groups_.size(); ++i) {
    if (groups_[i].group == group) return i;
  }
  return std::nullopt;
}

size_t ReadAhead::depth() const {
  if (holds_all_) return order_.size();
  const double steps =
      absl::FDivDuration(read_, std::max(step_, absl::Microseconds(1)));
  const double capped = std::min(steps, static_cast<double>(order_.size()));
  return std::min(
      std::max(static_cast<size_t>(capped) + kSpareDepth, kMinDepth),
      order_.size());
}

std::vector<GroupIndex> ReadAhead::Wanted(absl::Time now) {
  std::vector<GroupIndex> wanted;
  const size_t ahead = depth();
  for (size_t i = 0; i < ahead; ++i) {
    Group& group = groups_[order_[(cursor_ + i) % order_.size()]];
    if (group.asked) continue;
    const bool fits =
        window_bytes_ == 0 || window_bytes_ + group.bytes <= host_bytes_;
    if (!fits) break;
    group.asked = true;
    group.asked_at = now;
    window_bytes_ += group.bytes;
    wanted.push_back(group.group);
  }
  return wanted;
}

void ReadAhead::Arrived(LaneGroup group, absl::Time now) {
  // A missed group may come from outside the window.
  if (!groups_[group].asked) return;
  groups_[group].there = true;
  read_ = Blend(read_, now - groups_[group].asked_at);
}

void ReadAhead::Used(LaneGroup index, absl::Duration step) {
  step_ = Blend(step_, step);
  Returned(index);
  Missed(index);
  cursor_ = (cursor_ + 1) % order_.size();
}

void ReadAhead::Returned(LaneGroup index) {
  Group& group = groups_[index];
  if (group.asked) window_bytes_ -= group.bytes;
  group.asked = group.there = false;
}

bool ReadAhead::Crowded(uint64_t bytes) {
  uint64_t there = 0;
  for (const Group& group : groups_) {
    if (group.there) there += group.bytes;
  }
  host_bytes_ = std::min(host_bytes_, there - std::min(there, bytes));
  return std::exchange(holds_all_, false);
}

std::vector<LaneGroup> ReadAhead::Strays() const {
  std::vector<LaneGroup> strays;
  if (holds_all_) return strays;
  std::vector<bool> soon(groups_.size());
  uint64_t bytes = 0;
  uint64_t missing = 0;
  for (size_t i = 0; i < depth(); ++i) {
    const LaneGroup index = order_[(cursor_ + i) % order_.size()];
    const Group& group = groups_[index];
    if (soon[index]) continue;
    if (bytes > 0 && bytes + group.bytes > host_bytes_) break;
    soon[index] = true;
    bytes += group.bytes;
    if (!group.asked) missing += group.bytes;
  }
  if (window_bytes_ + missing <= host_bytes_) return strays;
  for (LaneGroup index = 0; index < groups_.size(); ++index) {
    if (groups_[index].there && !soon[index]) strays.push_back(index);
  }
  return strays;
}

void ReadAhead::Missed(LaneGroup index) {
  for (size_t i = 0; i < order_.size(); ++i) {
    const size_t place = (cursor_ + i) % order_.size();
    if (order_[place] != index) continue;
    cursor_ = place;
    return;
  }
}

}  // namespace hoistd
