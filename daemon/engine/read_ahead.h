// The streamed groups that a plan needs on the host, and since when.
//
// If all fit, they are held for the plan's life, and passes ask nothing of the
// engine unless the host becomes crowded. Otherwise a window of groups is read
// ahead of the ring, deep enough that each read ends before its group's turn:
// the time of a read over the time of a step. Groups that leave the window stay
// on the host while there is room; the farthest next use is evicted first.
// farthest next use.
#ifndef HOIST_DAEMON_ENGINE_READ_AHEAD_H_
#define HOIST_DAEMON_ENGINE_READ_AHEAD_H_

#include <cstdint>
#include <map>
#include <optional>
#include <vector>

#include "absl/time/time.h"
#include "daemon/core/requests.h"
#include "daemon/plan/lane_schedule.h"
#include "daemon/types/ids.h"

namespace hoistd {

// Threads: one at a time.
class ReadAhead {
 public:
  // Groups in the window take at most `host_bytes`; one group always fits.
  ReadAhead(const PlanGrant& grant, uint64_t host_bytes);

  bool holds_all() const { return holds_all_; }
  DeviceIndex device() const { return device_; }
  GroupIndex GroupOf(LaneGroup group) const { return groups_[group].group; }
  std::optional<LaneGroup> LaneOf(GroupIndex group) const;

  // Groups to request now, most urgent first; each once until it is used or
  // failed.
  std::vector<GroupIndex> Wanted(absl::Time now);
  // The group is on the host.
  void Arrived(LaneGroup group, absl::Time now);
  // The group's load is over, and the window moves on. `step`: time between two
  // positions.
  void Used(LaneGroup group, absl::Duration step);
  // A load waits for the group: the client left the order, or reads are late.
  void Missed(LaneGroup group);
  // Groups to release: present, and needed later than all that fit, while a
  // sooner one has no room.
  std::vector<LaneGroup> Strays() const;
  // The group was released.
  void Returned(LaneGroup group);
  // The host has no room for more, and needs `bytes` back for others. The
  // window stays that small. True: all groups were held until now.
  bool Crowded(uint64_t bytes);

  // Positions ahead of the last load up to which groups are requested.
  size_t depth() const;

 private:
  struct Group {
    GroupIndex group;
    uint64_t bytes = 0;
    bool asked = false;  // Or there.
    bool there = false;
    absl::Time asked_at;
  };

  std::vector<Group> groups_;
  std::vector<uint32_t> order_;
  DeviceIndex device_;
  uint64_t host_bytes_;
  bool holds_all_ = false;
  size_t cursor_ = 0;          // The position loaded next.
  uint64_t window_bytes_ = 0;  // Requested or present.
  absl::Duration step_ = absl::Milliseconds(1);
  absl::Duration read_ = absl::Milliseconds(10);  // From request to arrival.
};

}  // namespace hoistd

#endif  // HOIST_DAEMON_ENGINE_READ_AHEAD_H_
