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

struct ShareOptions {
  // Bytes are shared in proportion among plans of the same priority.
  uint32_t weight = 1;  // 1 to kMaxWeight.
  // A plan of higher priority goes first whenever it has something to copy.
  int32_t priority = 0;
  uint64_t max_bytes_per_second = 0;  // 0: no cap.

  static constexpr uint32_t kMaxWeight = 1000;
  static constexpr int32_t kMaxPriority = 10;  // And -10 at the least.
};

// What is to be different from now on; the rest stays as it is.
struct ShareChange {
  std::optional<uint32_t> weight;
  std::optional<int32_t> priority;
  std::optional<uint64_t> max_bytes_per_second;

  ShareOptions AppliedTo(ShareOptions share) const {
    share.weight = weight.value_or(share.weight);
    share.priority = priority.value_or(share.priority);
    share.max_bytes_per_second =
        max_bytes_per_second.value_or(share.max_bytes_per_second);
    return share;
  }
};

// What a change did.
struct ShareChanged {
  ShareOptions before;
  ShareOptions after;
};

// Start-time fair queueing (Goyal, Vin, Cheng; SIGCOMM 1996) in one level for
// each priority, with a token bucket for each cap. A plan that had nothing to
// copy for a while does not save up a claim, nor does one that its cap held
// back.
//
// In any stretch a plan copies at most what its cap allows, kBurstBytes and one
// copy more. Naming a plan that was not added is a bug of the caller.
//
// Threads: one at a time.
// Bounds:  a call costs at most one pass over the plans.
class LinkShare {
 public:
  // Two of the Streamer's pieces: fewer would leave the link idle while nobody
  // looks.
  static constexpr uint64_t kBurstBytes = uint64_t{64} << 20;

  void Add(PlanId plan, const ShareOptions& options);
  void Remove(PlanId plan);
  // Takes effect with the next copy. What is owed to an old cap is paid at the
  // rate of the new one; without a cap nothing is owed.
  void Set(PlanId plan, const ShareOptions& options);

  // Of the plans in `ready`, which all have a copy to start, the one whose turn
  // it is; nullopt: all are held back by their caps, until NextTurn.
  std::optional<PlanId> Pick(const std::vector<PlanId>& ready, absl::Time now);
  // `bytes` of the plan's go over the link now.
  void Charge(PlanId plan, uint64_t bytes, absl::Time now);
  // When the first of `ready` that has a cap may go on; InfiniteFuture: none
  // has one. Pick is not nullopt then.
  absl::Time NextTurn(const std::vector<PlanId>& ready) const;

 private:
  struct Entry {
    ShareOptions options;
    // Virtual time, in bytes at weight 1, at which its last copy began. With
    // `bytes` it says when that ends, by the weight of today.
    double start = 0;
    uint64_t bytes = 0;
    // What was copied beyond the cap's rate, at `as_of`.
    double owed = 0;
    absl::Time as_of = absl::InfinitePast();

    double finish() const { return start + double(bytes) / options.weight; }
    absl::Time AllowedAt() const;
  };

  Entry& Of(PlanId plan);
  double StartOfNext(const Entry& entry) const;
  void Rebase(int32_t priority);

  std::map<PlanId, Entry> plans_;
  // By priority: when the copy that was begun last began.
  std::map<int32_t, double> virtual_time_;
};

}  // namespace hoistd

#endif  // HOIST_DAEMON_CORE_LINK_SHARE_H_
