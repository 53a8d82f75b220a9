// The client's side of one lane: the next position, and its ops on streams
// (hoist/shared/lane_layout.h has the protocol).
#ifndef HOIST_CLIENT_SRC_PLAN_PLAN_LANE_H_
#define HOIST_CLIENT_SRC_PLAN_PLAN_LANE_H_

#include <atomic>
#include <chrono>
#include <cstdint>
#include <memory>
#include <vector>

#include "client/src/device/stream_order.h"
#include "client/src/plan/lane_view.h"
#include "hoist/shared/status.h"
#include "hoist/shared/unique_fd.h"

namespace hoist {

// Threads:  one at a time, except Await, Release and Fault, which any may call
//           at any time.
// Owns:     the lane's mapping and registration. Borrows `order`.
class PlanLane {
 public:
  // Between a Stage and its Done.
  struct Turn {
    uint64_t position = 0;  // Captured form: the index in the order.
    bool ready = false;     // The stream need not wait.
  };
  struct Stats {
    uint64_t skipped = 0;
    uint64_t host_waits = 0;
    uint64_t wake_ups = 0;
  };
  struct Options {
    uint32_t groups = 0;
    std::vector<uint32_t> order;  // Of one pass; names each group.
    // Limit of the wait for hoistd to take a request from a full ring.
    std::chrono::milliseconds ring_limit{0};
  };

  static Result<std::unique_ptr<PlanLane>> Create(const UniqueFd& memory,
                                                  UniqueFd wake,
                                                  Options options,
                                                  StreamOrder* order);
  PlanLane(const PlanLane&) = delete;
  PlanLane& operator=(const PlanLane&) = delete;
  // No stream may still use the lane.
  ~PlanLane();

  // The first stream under capture starts the captured form. `idle`: nothing is
  // staged, which the start requires.
  Status FollowCapture(cuda::Stream stream, bool idle);
  // Takes the group's next turn, and makes the stream wait for it. If the order
  // is on the CPU, Await waits instead.
  Result<Turn> Take(uint32_t group, cuda::Stream stream);
  // Makes a stream wait for an earlier turn.
  Status Join(uint32_t group, Turn turn, cuda::Stream stream);
  Status Await(uint32_t group, Turn turn);
  // Marks the turn as done: its last reader is on the stream.
  Status Finish(uint32_t group, Turn turn, cuda::Stream stream);

  // Lets all waits of the plan through, also later ones. In captured form a
  // graph may wait again, so call it repeatedly.
  void Release();
  // In captured form, after a remake, while nothing runs: each call lets older
  // graphs through once.
  void Retire();
  // Since Retire a graph has staged a group, or is done with one.
  bool UsedSinceRetired() const;
  // See LaneView::Fault. Cheap enough for every call.
  bool faulted() const { return view_.header().fault_code.load() != 0; }
  Status Fault() const { return view_.Fault(); }
  bool captured() const { return captured_.load(std::memory_order_acquire); }
  const Stats& stats() const { return stats_; }

 private:
  PlanLane(LaneView view, UniqueFd wake, Options options, StreamOrder* order);

  uint32_t DistanceTo(uint32_t group, uint32_t place) const;
  Result<Turn> TakeCounted(uint32_t group, cuda::Stream stream);
  Result<Turn> TakeCaptured(uint32_t group, cuda::Stream stream);
  // Orders the stream behind the last one: for one_at_a_time, and for the
  // captured form, which has a single `want`.
  Status FollowLastStream(cuda::Stream stream);
  Status Ask(lane::RequestKind kind, uint64_t from, uint64_t to);
  void PublishCursor(uint64_t cursor);
  void Wake();

  const LaneView view_;
  const UniqueFd wake_;
  const Options options_;
  StreamOrder* const order_;
  // Each group's indices in the order, group by group.
  std::vector<uint32_t> places_;
  std::vector<uint32_t> first_place_;  // Of group g in places_; one more.
  uint64_t cursor_ = 0;
  uint32_t head_ = 0;
  uint32_t place_ = 0;  // Captured form: the next index in the order.
  bool any_stream_ = false;
  cuda::Stream last_stream_ = nullptr;
  Stats stats_;
  // The lane's cursor, in memory that only this process writes.
  std::atomic<uint32_t> published_{0};
  std::atomic<bool> captured_{false};
  std::atomic<bool> released_{false};
};

}  // namespace hoist

#endif  // HOIST_CLIENT_SRC_PLAN_PLAN_LANE_H_
