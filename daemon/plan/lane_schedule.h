// Schedules one plan's ring: which load comes next, which slots may be
// overwritten, which positions are served.
//
// Positions and words are those of hoist/shared/lane_layout.h. Loads start in
// the order of positions, as far ahead of the client as slots are free, across
// the end of a pass. A slot is free when each group in its place is done with
// its last position, or that position was skipped. A group still in its slot
// serves its next position without a copy, once it is done with the one before.
//
// Pure: no clock, memory or thread. The owner reports what it read in the lane,
// starts the loads asked for, and reports their ends.
#ifndef HOIST_DAEMON_PLAN_LANE_SCHEDULE_H_
#define HOIST_DAEMON_PLAN_LANE_SCHEDULE_H_

#include <cstddef>
#include <cstdint>
#include <deque>
#include <optional>
#include <vector>

#include "absl/status/status.h"
#include "daemon/plan/planner.h"

namespace hoistd {

// Index of a streamed group in its lane.
using LaneGroup = uint32_t;

// Threads: one at a time.
// Bounds:  memory grows with groups, order, pairs of overlapping slots and
//          kMaxSkipsAhead. A call costs at most one pass over a group's
//          neighbours. NextLoad adds the positions that it serves, Skip those
//          that it skips, and TakeStale an occasional pass over the groups.
class LaneSchedule {
 public:
  // A copy to start: the group's image to its slot, then the ready word for
  // `position`.
  struct Load {
    LaneGroup group = 0;
    uint64_t position = 0;
  };
  // A position that needs no copy: the CPU can write its ready word at once. No
  // copy into the slot is in flight.
  using Serve = Load;
  // Words for the CPU to write at once: no GPU is about to write them. The
  // value adds no new claim.
  struct Refresh {
    LaneGroup group = 0;
    uint32_t word = 0;
    bool ready = false;
    bool done = false;
  };

  // Of an order. With a request ring full of skips, the client can then be 2^28
  // positions ahead of this class's knowledge.
  static constexpr size_t kMaxOrder = size_t{1} << 20;
  static constexpr size_t kMaxSkipsAhead = 1024;

  // `slots` of the streamed groups, none empty; `order` of one pass names each
  // at least once. `first_position` is served first. The lane's ready and done
  // words start as its lower 32 bits, one below its own word.
  LaneSchedule(std::vector<Slot> slots, std::vector<uint32_t> order,
               uint64_t first_position = 0);

  // Resumes a lane that another schedule served before; to be called first. All
  // positions below `first_position` were served or skipped; skips may be
  // repeated. Any value is harmless to other lanes.
  //
  // Counted form: the group's words. It lies in its slot while `ready` is
  // beyond `done`, perhaps for a position passes beyond the first: during one
  // slow copy a client can stage and skip any number of positions whose groups
  // are in their slots.
  void ResumeWords(LaneGroup group, uint32_t ready, uint32_t done);
  // Captured form: from position `from` on the group is in its slot, not done.
  void ResumeFlag(LaneGroup group, uint64_t from);
  // All groups have been resumed.
  void Resumed();

  // True: the image is readable on the host, and its loads may start. False: it
  // no longer is.
  void SetHostReady(LaneGroup group, bool ready);

  // `word` is the group's done word, written by the client. Any value is
  // harmless to other lanes.
  void SawDone(LaneGroup group, uint32_t word);
  // Captured form: the group's last position is done.
  void SawDoneFlag(LaneGroup group);
  // The client will not stage positions [from, to), at most one pass. It has
  // staged or skipped all below `from`: those are still served.
  // InvalidArgument: `from` is below an earlier `to` or out of reach, `to` is
  // below `from`, or the range exceeds a pass. ResourceExhausted: no fault, but
  // the client is too far ahead; retry after the next NextLoad, Loaded or
  // TakeStale that changed something.
  absl::Status Skip(uint64_t from, uint64_t to);

  // The next copy that can start now, recorded as started. On nullopt,
  // blocked_on_host() says whether only the host copy is missing. `served` gets
  // the positions reached without a copy, in order.
  std::optional<Load> NextLoad(std::vector<Serve>& served);
  std::optional<LaneGroup> blocked_on_host() const { return blocked_on_host_; }
  // The group in the head's place that is in use or being loaded, perhaps the
  // head's own; nullopt: the place is free.
  std::optional<LaneGroup> holder() const;
  // All positions below are served or skipped, and none is being loaded.
  uint64_t served() const;

  // The copy of `load` is complete; its ready word has been written.
  void Loaded(const Load& load);

  // The words of a group that is always passed over would fall 2^31 positions
  // behind and then compare as ahead. Appends words due for a refresh. To be
  // called before each NextLoad, which stops without it. Nearly always just one
  // comparison.
  void TakeStale(std::vector<Refresh>& stale);

  // Each position below was served or skipped; this one is next.
  uint64_t head() const { return head_; }
  LaneGroup GroupAt(uint64_t position) const {
    return order_[position % order_.size()];
  }
  // Whether the group is in its slot or being loaded.
  bool present(LaneGroup group) const;
  bool loading(LaneGroup group) const;
  // Served, but neither done nor skipped.
  bool in_use(LaneGroup group) const;
  uint64_t last_position(LaneGroup group) const;

 private:
  enum class State { kAbsent, kLoading, kLoaded };
  struct Entry {
    State state = State::kAbsent;
    bool host_ready = false;
    bool in_use = false;
    bool stale = false;     // It is in stale_.
    uint64_t position = 0;  // The last loaded or served.
    // The words extended to 64 bits. `done` is a lower bound while the group is
    // in use, and `ready` while it is loading.
    uint64_t ready_word = 0;
    uint64_t done_word = 0;
    std::vector<LaneGroup> neighbours;  // With overlapping slots.
  };
  struct Range {
    uint64_t from = 0;
    uint64_t to = 0;
  };

  void FindNeighbours(const std::vector<Slot>& slots);
  void PassSkips();
  void Use(Entry& entry);
  void AddStale(LaneGroup group);
  void ResumeInUse(Entry& entry, uint64_t position);
  uint64_t LastBelow(LaneGroup group, uint64_t position) const;

  std::vector<Entry> groups_;
  const std::vector<uint32_t> order_;
  uint64_t head_ = 0;
  uint64_t skipped_to_ = 0;       // No later skip begins below; 0: none yet.
  uint64_t resumed_to_ = 0;       // Below it groups were in use at the start.
  std::deque<Range> skips_;       // Beyond the head; ordered, not adjacent.
  uint64_t swept_at_ = 0;         // The head at the last check of words.
  std::vector<LaneGroup> stale_;  // With words to refresh.
  std::vector<LaneGroup> loading_;
  std::optional<LaneGroup> blocked_on_host_;
};

}  // namespace hoistd

#endif  // HOIST_DAEMON_PLAN_LANE_SCHEDULE_H_
