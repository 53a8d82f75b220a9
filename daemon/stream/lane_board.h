// Statistics of lanes.
#ifndef HOIST_DAEMON_STREAM_LANE_BOARD_H_
#define HOIST_DAEMON_STREAM_LANE_BOARD_H_

#include <cstdint>
#include <map>
#include <vector>

#include "absl/base/thread_annotations.h"
#include "absl/status/status.h"
#include "absl/synchronization/mutex.h"
#include "absl/time/time.h"
#include "daemon/plan/link_share.h"
#include "daemon/types/ids.h"

namespace hoistd {

// A lane's statistics since its start.
struct LaneStats {
  PlanId plan;
  ShareOptions share;
  uint64_t copied_bytes = 0;  // Host to device, complete.
  uint64_t loads = 0;
  uint64_t served_in_place = 0;   // Positions that needed no copy.
  uint64_t skipped = 0;           // Positions the client skipped.
  uint64_t wasted_loads = 0;      // Loads of positions skipped later.
  uint64_t host_waits = 0;        // Times a load waited for the host tier.
  uint64_t bytes_per_second = 0;  // Over about the last second.
  // How long, and how often, the client had asked for a position that was not
  // ready: its stream waited, or was about to.
  absl::Duration waited;
  uint64_t waits = 0;
  bool captured = false;
  absl::Status fault;
};

// Threads: thread-safe.
class LaneBoard {
 public:
  void Publish(const LaneStats& stats, absl::Time now) ABSL_LOCKS_EXCLUDED(mu_);
  void Erase(PlanId plan) ABSL_LOCKS_EXCLUDED(mu_);
  std::vector<LaneStats> Stats(absl::Time now) const ABSL_LOCKS_EXCLUDED(mu_);
  // Of all lanes ever opened.
  struct Totals {
    absl::Duration waited;
    uint64_t waits = 0;
    uint64_t loads = 0;
    uint64_t wasted_loads = 0;
    uint64_t host_waits = 0;

    void Add(const LaneStats& stats);
  };
  Totals AllTotals() const ABSL_LOCKS_EXCLUDED(mu_);

 private:
  // The rate covers the bytes since `since`.
  struct Published {
    LaneStats stats;
    uint64_t bytes_at_since = 0;
    uint64_t bytes_at_mark = 0;
    absl::Time since;
    absl::Time mark;
    absl::Time last_copy = absl::InfinitePast();
  };

  mutable absl::Mutex mu_;
  std::map<PlanId, Published> published_ ABSL_GUARDED_BY(mu_);
  Totals erased_ ABSL_GUARDED_BY(mu_);
};

}  // namespace hoistd

#endif  // HOIST_DAEMON_STREAM_LANE_BOARD_H_
