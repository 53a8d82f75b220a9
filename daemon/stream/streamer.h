// One device's streaming: keeps the rings of all plans filled, over lanes.
//
// Each plan's lane is a customer of the device's Link. When the link has room,
// the lane reads its words and asks its LaneSchedule for the next load. A copy
// is queued only once its slot is free. So nothing in this process waits on a
// GPU for a worker: a worker that stops, hangs or dies delays only its own
// plan. The copy stream writes the ready words itself: no thread runs between
// the end of a copy and the kernels that wait for it.
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
#include "daemon/types/ids.h"
#include "daemon/types/ranges.h"
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
  // A position requested but not ready after this time fails the plan
  // (DeadlineExceeded): no wait is endless.
  absl::Duration stage_deadline = absl::Seconds(60);
  // The plan's session, for recordings.
  SessionId session;
  ModelId model;
};

// What a client needs to open a lane.
struct LaneShare {
  hoist::UniqueFd memory;  // A memfd of LaneBytes(groups), sealed in size.
  hoist::UniqueFd wake;    // An eventfd; see lane_layout.h.
};

// The streamer's events; called on its thread, must not block.
struct StreamerEvents {
  // The load of a group that was ready once has ended: its host copy is no
  // longer read. `step`: observed time between two positions.
  absl::AnyInvocable<void(PlanId, LaneGroup, absl::Duration step)> host_used;
  // TakeBack has taken effect: as host_used, but the group was not read.
  absl::AnyInvocable<void(PlanId, LaneGroup)> host_returned;
  // A load is due and the group is not ready on the host.
  absl::AnyInvocable<void(PlanId, LaneGroup)> host_wanted;
  // The plan has failed, and its client knows; the lane stays until Close.
  absl::AnyInvocable<void(PlanId, absl::Status)> faulted;
};

struct StreamerParts {
  Link* link = nullptr;
  std::span<std::byte> host;   // The host pool.
  Threads* threads = nullptr;  // The link's; nullptr: the system's.
};

class Lane;

// Threads:  thread-safe; calls return at once. Their work runs in order on the
//           link's thread, and so do callbacks.
// Owns:     lanes. Borrows the parts, which outlive it.
// Bounds:   kMaxLanes.
class Streamer {
 public:
  static constexpr size_t kMaxLanes = 1024;

  Streamer(StreamerParts parts, StreamerEvents events);
  Streamer(const Streamer&) = delete;
  Streamer& operator=(const Streamer&) = delete;
  // Closes all lanes, and waits for copies into rings in flight.
  ~Streamer();

  // Makes the lane; loads start when the host is ready. `found`: the memory of
  // the last hoistd's lane, which its client still uses; the lane resumes
  // there. InvalidArgument: it cannot.
  void Open(LaneSpec spec, std::optional<LaneShare> found,
            absl::AnyInvocable<void(absl::StatusOr<LaneShare>)> done);
  // Calls `done` when no copy into the plan's ring is in flight; the lane is
  // gone then. An unknown plan counts as closed.
  void Close(PlanId plan, absl::AnyInvocable<void()> done);
  // The group's image lies in these `ranges` (at least one) of the host pool
  // and stays there: for good or, with `once`, until host_used.
  void HostReady(PlanId plan, LaneGroup group, ImageRanges ranges, bool once);
  // From now on all groups ready for good are ready once.
  void HostForOnce(PlanId plan);
  // Asks for a group back that was ready once. Answers host_returned, or
  // host_used if its load has begun, or nothing if either was on its way.
  void TakeBack(PlanId plan, LaneGroup group);
  // Ends the plan with an error status that its client sees.
  void Fail(PlanId plan, absl::Status why);
  void SetShare(PlanId plan, ShareOptions share);
  std::vector<LaneStats> Stats() const {
    return board_.Stats(parts_.link->clock().Now());
  }
  // Of all plans ever opened.
  LaneBoard::Totals Totals() const { return board_.AllTotals(); }

 private:
  struct Entry {
    std::unique_ptr<Lane> lane;
    std::vector<absl::AnyInvocable<void()>> closing;  // Callbacks of Close.
  };

  absl::StatusOr<LaneShare> OpenNow(LaneSpec spec,
                                    std::optional<LaneShare> found);
  void CloseNow(PlanId plan, absl::AnyInvocable<void()> done);
  void Gone(PlanId plan);
  Lane* Find(PlanId plan);

  const StreamerParts parts_;
  StreamerEvents events_;
  LaneBoard board_;
  std::map<PlanId, Entry> lanes_;  // Used by the link's thread only.
};

}  // namespace hoistd

#endif  // HOIST_DAEMON_STREAM_STREAMER_H_
