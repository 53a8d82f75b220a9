// The client's side of one lane: which position is staged next, and what is put
// on streams for it (hoist/shared/lane_layout.h has the protocol).
#ifndef HOIST_CLIENT_SRC_PLAN_LANE_H_
#define HOIST_CLIENT_SRC_PLAN_LANE_H_

#include <atomic>
#include <chrono>
#include <cstdint>
#include <memory>
#include <vector>

#include "client/src/lane_view.h"
#include "client/src/stream_order.h"
#include "hoist/shared/status.h"
#include "hoist/shared/unique_fd.h"

namespace hoist {

// Threads:  its owner calls it from one thread at a time, but for Await,
//           Release and Fault, which any may call at any time.
// Owns:     the lane's mapping and registration. Borrows `order`.
class PlanLane {
 public:
  // Between a Stage and its Done.
  struct Turn {
    uint64_t position = 0;  // Captured form: the place in the order.
    bool ready = false;     // Nothing was put on the stream to wait.
  };
  struct Stats {
    uint64_t skipped = 0;
    uint64_t host_waits = 0;
    uint64_t wake_ups = 0;
  };
  struct Options {
    uint32_t groups = 0;
    std::vector<uint32_t> order;  // Of one pass; names each group.
    // For hoistd to take a request from a full ring.
    std::chrono::milliseconds ring_limit{0};
  };

  static Result<std::unique_ptr<PlanLane>> Create(const UniqueFd& memory,
                                                  UniqueFd wake,
                                                  Options options,
                                                  StreamOrder* order);
  PlanLane(const PlanLane&) = delete;
  PlanLane& operator=(const PlanLane&) = delete;
  // Nothing on any stream uses the lane any more.
  ~PlanLane();

  // If the stream is being captured, and none was before, the captured form
  // holds from now on; nothing may be staged then. `idle`: nothing is.
  Status FollowCapture(cuda::Stream stream, bool idle);
  // Takes the group's next turn, and lets the stream wait for it. Where the
  // order is kept on the CPU, Await does the waiting.
  Result<Turn> Take(uint32_t group, cuda::Stream stream);
  // Lets a stream wait for a turn that was taken before.
  Status Join(uint32_t group, Turn turn, cuda::Stream stream);
  Status Await(uint32_t group, Turn turn);
  // The turn's last reader is on the stream.
  Status Finish(uint32_t group, Turn turn, cuda::Stream stream);

  // Lets all waits of the plan through, those that come later too; in captured
  // form a graph may wait again, so again and again.
  void Release();
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
  // Waits for one_at_a_time and for the captured form, whose `want` is one.
  Status FollowLastStream(cuda::Stream stream);
  Status Ask(lane::RequestKind kind, uint64_t from, uint64_t to);
  void PublishCursor(uint64_t cursor);
  void Wake();

  const LaneView view_;
  const UniqueFd wake_;
  const Options options_;
  StreamOrder* const order_;
  // Each group's places in the order, one group after another.
  std::vector<uint32_t> places_;
  std::vector<uint32_t> first_place_;  // Of group g in places_; one more.
  uint64_t cursor_ = 0;
  uint32_t head_ = 0;
  uint32_t place_ = 0;  // Captured form: the next in the order.
  bool any_stream_ = false;
  cuda::Stream last_stream_ = nullptr;
  Stats stats_;
  // What the lane's own cursor says, where only this process can write.
  std::atomic<uint32_t> published_{0};
  std::atomic<bool> captured_{false};
  std::atomic<bool> released_{false};
};

}  // namespace hoist

#endif  // HOIST_CLIENT_SRC_PLAN_LANE_H_
