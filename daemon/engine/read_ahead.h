// Which of a plan's streamed groups are to lie on the host, and since when.
//
// Where all of them fit they are held for as long as the plan stands, and
// nothing is asked of the engine in any pass, unless the host becomes crowded.
// Otherwise a window of them is
// read ahead of the ring, so far that a read is over before its group's turn
// comes: as deep as the time that reads take has steps. What leaves the window
// may stay on the host as far as others leave room, and is evicted by the
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
#include "daemon/terms/ids.h"

namespace hoistd {

// Threads: one at a time.
class ReadAhead {
 public:
  // The window's groups take at most `host_bytes` (but one group always fits).
  ReadAhead(const PlanGrant& grant, uint64_t host_bytes);

  bool holds_all() const { return holds_all_; }
  DeviceIndex device() const { return device_; }
  GroupIndex GroupOf(LaneGroup group) const { return groups_[group].group; }
  std::optional<LaneGroup> LaneOf(GroupIndex group) const;

  // What to ask for now, in order of need, each group once until it is used or
  // failed.
  std::vector<GroupIndex> Wanted(absl::Time now);
  // It lies on the host.
  void Arrived(LaneGroup group, absl::Time now);
  // Its load is over, and the window moves on. `step`: time between two
  // positions.
  void Used(LaneGroup group, absl::Duration step);
  // A load waits for it: the client has left the order, or reads are late.
  void Missed(LaneGroup group);
  // Those that are there and needed later than all that there is room for, if
  // what is needed sooner has no room: to be taken back.
  std::vector<LaneGroup> Strays() const;
  // It was, and does not lie there for the plan any more.
  void Returned(LaneGroup group);
  // The host has no room for more than lies there now; `bytes` of that are for
  // others. The window stays that small. True: all was held until now.
  bool Crowded(uint64_t bytes);

  // How many positions ahead of the last load groups are asked for.
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
  size_t cursor_ = 0;          // The place in the order that is loaded next.
  uint64_t window_bytes_ = 0;  // Of what is asked for or there.
  absl::Duration step_ = absl::Milliseconds(1);
  absl::Duration read_ = absl::Milliseconds(10);  // From asked to there.
};

}  // namespace hoistd

#endif  // HOIST_DAEMON_ENGINE_READ_AHEAD_H_
