// One device's streaming: it keeps the rings of all plans filled, over lanes.
//
// It looks at the lanes' words, asks each plan's LaneSchedule what is to be
// loaded and LinkShare whose turn it is, and queues copies a few pieces deep,
// so that the link never idles and nobody waits long behind somebody else's
// large group. A copy is queued only once its slot is free: nothing of this
// process ever waits on a GPU for a worker, so a worker that stops, hangs or
// dies holds up its own plan alone. The copy stream writes the ready words
// itself; no thread is between the end of a copy and the kernels that wait for
// it.
#ifndef HOIST_DAEMON_STREAM_STREAMER_H_
#define HOIST_DAEMON_STREAM_STREAMER_H_

#include <cstddef>
#include <cstdint>
#include <memory>
#include <span>
#include <string>
#include <vector>

#include "absl/functional/any_invocable.h"
#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/time/time.h"
#include "daemon/base/clock.h"
#include "daemon/core/device.h"
#include "daemon/core/lane_schedule.h"
#include "daemon/core/link_share.h"
#include "daemon/core/planner.h"
#include "hoist/shared/unique_fd.h"

namespace hoistd {

struct LaneSpec {
  PlanId plan;
  struct Streamed {
    Slot slot;                   // In the ring.
    uint64_t device_offset = 0;  // Of the slot, in the device's span.
    uint64_t bytes = 0;          // Of the image; at most the slot's.
  };
  std::vector<Streamed> groups;  // By LaneGroup; not empty.
  std::vector<uint32_t> order;   // LaneGroups.
  ShareOptions share;
  // A position that the client has asked for and that is not ready after this
  // long is the plan's fault (DeadlineExceeded): nobody waits for ever.
  absl::Duration stage_deadline = absl::Seconds(60);
};

// What a client needs to use a lane.
struct LaneShare {
  hoist::UniqueFd memory;  // A memfd of LaneBytes(groups), sealed in size.
  hoist::UniqueFd wake;    // An eventfd; see lane_layout.h.
};

// What a lane has done so far.
struct LaneStats {
  PlanId plan;
  ShareOptions share;
  uint64_t copied_bytes = 0;  // Host to device, complete.
  uint64_t loads = 0;
  uint64_t served_in_place = 0;   // Positions that needed no copy.
  uint64_t skipped = 0;           // Positions the client skipped.
  uint64_t wasted_loads = 0;      // Loads of positions that were then skipped.
  uint64_t host_waits = 0;        // Times a load waited for the host tier.
  uint64_t bytes_per_second = 0;  // Over about the last second.
  bool captured = false;
  absl::Status fault;
};

// How the streamer tells its owner; called on its thread, must not block.
struct StreamerEvents {
  // The load of this group, which was allowed once, is over: its host copy is
  // not read any more. `step`: observed time between two positions.
  absl::AnyInvocable<void(PlanId, LaneGroup, absl::Duration step)> host_used;
  // TakeBack took effect: as host_used, but the group was not read.
  absl::AnyInvocable<void(PlanId, LaneGroup)> host_returned;
  // A load is due and the group is not ready on the host.
  absl::AnyInvocable<void(PlanId, LaneGroup)> host_wanted;
  // The plan is dead; Close it.
  absl::AnyInvocable<void(PlanId, absl::Status)> faulted;
};

struct StreamerParts {
  Device* device = nullptr;
  std::span<std::byte> host;  // The host pool.
  const Clock* clock = nullptr;
};

// Threads:  thread-safe; calls return at once. One thread of its own does the
//           work; callbacks run on it.
// Owns:     lanes, a copy stream. Borrows the parts.
// Bounds:   kPieceBytes a copy, kPiecesUnderWay of them queued.
class Streamer {
 public:
  static constexpr uint64_t kPieceBytes = uint64_t{32} << 20;
  // One is copied, one is next. A third would only take single small groups
  // that could have gone in one copy with their neighbours.
  static constexpr int kPiecesUnderWay = 2;

  static absl::StatusOr<std::unique_ptr<Streamer>> Create(
      StreamerParts parts, StreamerEvents events);
  virtual ~Streamer() = default;  // Waits for copies under way; joins.

  // Makes the lane; it fills as soon as the host is ready.
  virtual void Open(
      LaneSpec spec,
      absl::AnyInvocable<void(absl::StatusOr<LaneShare>)> done) = 0;
  // Calls `done` when no copy into the plan's ring is under way any more; the
  // lane is gone then. A plan that is not there is closed at once.
  virtual void Close(PlanId plan, absl::AnyInvocable<void()> done) = 0;
  // The group's image lies at `host_offset` of the host pool and stays there:
  // for good, or (once) until host_used.
  virtual void HostReady(PlanId plan, LaneGroup group, uint64_t host_offset,
                         bool once) = 0;
  // The group is wanted back that was given for once: host_returned comes, or
  // host_used if its load has begun, or neither if one of them was on its way.
  virtual void TakeBack(PlanId plan, LaneGroup group) = 0;
  // Ends the plan with a typed error that its client will see.
  virtual void Fail(PlanId plan, absl::Status why) = 0;
  virtual void SetShare(PlanId plan, ShareOptions share) = 0;
  virtual std::vector<LaneStats> Stats() const = 0;
  // Host to device, of all plans that ever were.
  virtual uint64_t copied_bytes() const = 0;
};

}  // namespace hoistd

#endif  // HOIST_DAEMON_STREAM_STREAMER_H_
