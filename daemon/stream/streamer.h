// One device's streaming: it keeps the rings of all plans filled, over lanes.
//
// Each plan's lane is a customer of the device's Link: it looks at the lane's
// words and asks the plan's LaneSchedule what is to be loaded, whenever the
// link has room. A copy is queued only once its slot is free: nothing of this
// process ever waits on a GPU for a worker, so a worker that stops, hangs or
// dies holds up its own plan alone. The copy stream writes the ready words
// itself; no thread is between the end of a copy and the kernels that wait for
// it.
#ifndef HOIST_DAEMON_STREAM_STREAMER_H_
#define HOIST_DAEMON_STREAM_STREAMER_H_

#include <cstddef>
#include <cstdint>
#include <map>
#include <memory>
#include <optional>
#include <span>
#include <vector>

#include "absl/functional/any_invocable.h"
#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/time/time.h"
#include "daemon/base/threads.h"
#include "daemon/link/link.h"
#include "daemon/plan/lane_schedule.h"
#include "daemon/plan/link_share.h"
#include "daemon/plan/planner.h"
#include "daemon/stream/lane_board.h"
#include "daemon/terms/ids.h"
#include "daemon/terms/image_range.h"
#include "hoist/shared/unique_fd.h"

namespace hoistd {

struct LaneSpec {
  PlanId plan;
  struct Streamed {
    Slot slot;                   // In the ring.
    uint64_t device_offset = 0;  // Of the slot, in the device's span.
    uint64_t bytes = 0;          // Of the image; at most the slot's.
    GroupIndex group;            // Of `model`; for recordings.
  };
  std::vector<Streamed> groups;  // By LaneGroup; not empty.
  std::vector<uint32_t> order;   // LaneGroups.
  ShareOptions share;
  // A position that the client has asked for and that is not ready after this
  // long is the plan's fault (DeadlineExceeded): nobody waits for ever.
  absl::Duration stage_deadline = absl::Seconds(60);
  // Whose it is, for recordings.
  SessionId session;
  ModelId model;
};

// What a client needs to use a lane.
struct LaneShare {
  hoist::UniqueFd memory;  // A memfd of LaneBytes(groups), sealed in size.
  hoist::UniqueFd wake;    // An eventfd; see lane_layout.h.
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
  // The plan is dead, and its client has been told; its lane stays until Close.
  absl::AnyInvocable<void(PlanId, absl::Status)> faulted;
};

struct StreamerParts {
  Link* link = nullptr;
  std::span<std::byte> host;   // The host pool.
  Threads* threads = nullptr;  // The link's; nullptr: the system's.
};

class Lane;

// Threads:  thread-safe; calls return at once. What they do is done on the
//           link's thread, in order; callbacks run there.
// Owns:     lanes. Borrows the parts, which outlive it.
// Bounds:   kMaxLanes.
class Streamer {
 public:
  static constexpr size_t kMaxLanes = 1024;

  Streamer(StreamerParts parts, StreamerEvents events);
  Streamer(const Streamer&) = delete;
  Streamer& operator=(const Streamer&) = delete;
  // Closes what is open, and waits for copies into rings that are under way.
  ~Streamer();

  // Makes the lane; it fills as soon as the host is ready. `found`: what the
  // last hoistd's was made of, which its client still uses: it goes on where
  // it stood. InvalidArgument: that cannot be.
  void Open(LaneSpec spec, std::optional<LaneShare> found,
            absl::AnyInvocable<void(absl::StatusOr<LaneShare>)> done);
  // Calls `done` when no copy into the plan's ring is under way any more; the
  // lane is gone then. A plan that is not there is closed at once.
  void Close(PlanId plan, absl::AnyInvocable<void()> done);
  // The group's image lies in these `ranges` of the host pool, of which there
  // is one at least, and stays there: for good, or (once) until host_used.
  void HostReady(PlanId plan, LaneGroup group, ImageRanges ranges, bool once);
  // All that was given is given for once from now on.
  void HostForOnce(PlanId plan);
  // The group is wanted back that was given for once: host_returned comes, or
  // host_used if its load has begun, or neither if one of them was on its way.
  void TakeBack(PlanId plan, LaneGroup group);
  // Ends the plan with a typed error that its client will see.
  void Fail(PlanId plan, absl::Status why);
  void SetShare(PlanId plan, ShareOptions share);
  std::vector<LaneStats> Stats() const {
    return board_.Stats(parts_.link->clock().Now());
  }
  // Of all plans that there ever were.
  LaneBoard::Totals Totals() const { return board_.AllTotals(); }

 private:
  struct Entry {
    std::unique_ptr<Lane> lane;
    std::vector<absl::AnyInvocable<void()>> closing;  // Whom to tell.
  };

  absl::StatusOr<LaneShare> OpenNow(LaneSpec spec,
                                    std::optional<LaneShare> found);
  void CloseNow(PlanId plan, absl::AnyInvocable<void()> done);
  void Gone(PlanId plan);
  Lane* Find(PlanId plan);

  const StreamerParts parts_;
  StreamerEvents events_;
  LaneBoard board_;
  std::map<PlanId, Entry> lanes_;  // The link's thread's alone.
};

}  // namespace hoistd

#endif  // HOIST_DAEMON_STREAM_STREAMER_H_
