// Who may use a device's link next: fair by bytes among the plans that stream.
#ifndef HOIST_DAEMON_CORE_LINK_SHARE_H_
#define HOIST_DAEMON_CORE_LINK_SHARE_H_

#include <cstdint>
#include <map>
#include <optional>
#include <vector>

#include "absl/time/time.h"
#include "daemon/core/ids.h"

namespace hoistd {

using PlanId = Id<struct PlanTag>;

struct ShareOptions {
  // Bytes are shared in proportion among plans of the same priority.
  uint32_t weight = 1;  // 1 to kMaxWeight.
  // A plan of higher priority goes first whenever it has something to copy.
  int32_t priority = 0;
  uint64_t max_bytes_per_second = 0;  // 0: no cap.

  static constexpr uint32_t kMaxWeight = 1000;
  static constexpr int32_t kMaxPriority = 10;  // And -10 at the least.
};

// Start-time fair queueing (Goyal, Vin, Cheng; SIGCOMM 1996) in one level for
// each priority, with a token bucket for each cap. A plan that had nothing to
// copy for a while does not save up a claim.
//
// Threads: one at a time.
// Bounds:  a call costs at most one pass over the plans.
class LinkShare {
 public:
  void Add(PlanId plan, const ShareOptions& options);
  void Remove(PlanId plan);
  // Takes effect with the next copy.
  void Set(PlanId plan, const ShareOptions& options);
  const ShareOptions& Get(PlanId plan) const;

  // Of the plans in `ready`, which all have a copy to start, the one whose turn
  // it is; nullopt: all are held back by their caps, until NextTurn.
  std::optional<PlanId> Pick(const std::vector<PlanId>& ready, absl::Time now);
  // `bytes` of the plan's go over the link now.
  void Charge(PlanId plan, uint64_t bytes, absl::Time now);
  // When the first of `ready` that is held back by its cap may go on.
  absl::Time NextTurn(const std::vector<PlanId>& ready) const;

 private:
  struct Entry {
    ShareOptions options;
    double finish = 0;  // Virtual time at which its last copy ends.
    absl::Time allowed_at = absl::InfinitePast();  // By its cap.
  };

  std::map<PlanId, Entry> plans_;
  std::map<int32_t, double> virtual_time_;  // By priority.
};

}  // namespace hoistd

#endif  // HOIST_DAEMON_CORE_LINK_SHARE_H_
