// What one plan's ring is to be filled with next: who is in which slot, who may
// be overwritten, which positions are served.
//
// Positions and words are those of hoist/shared/lane_layout.h. Loads are
// started in the order of positions and ahead of the client as far as slots are
// free, round the end of the pass into the next one. A slot is free when every
// group that lies in its place is done with its last position, or that position
// was skipped. A group that is still in its slot serves its next position
// without a copy, once it is done with the one before.
//
// Pure: no clock, memory or thread. Whoever owns it feeds it what it saw in the
// lane, starts the loads that it asks for and says when they ended.
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
//          kMaxSkipsAhead; a call costs at most one pass over a group's
//          neighbours, NextLoad also the positions that it serves, Skip those
//          that it skips, TakeStale now and then one pass over the groups.
class LaneSchedule {
 public:
  // A copy to start: the group's image to its slot; behind the copy the ready
  // word for `position` is to be written.
  struct Load {
    LaneGroup group = 0;
    uint64_t position = 0;
  };
  // A position that needs no copy: its ready word can be written at once, by
  // the CPU. No copy into the slot is under way.
  using Serve = Load;
  // Words to be written by the CPU, at once: no GPU is about to write them. The
  // value says nothing that was not true before.
  struct Refresh {
    LaneGroup group = 0;
    uint32_t word = 0;
    bool ready = false;
    bool done = false;
  };

  // Of an order. With a request ring full of skips, the client can then be
  // 2^28 positions ahead of what this class was told.
  static constexpr size_t kMaxOrder = size_t{1} << 20;
  static constexpr size_t kMaxSkipsAhead = 1024;

  // `slots` of the streamed groups, none empty; `order` of one pass names each
  // at least once. `first_position` is served first; the lane's ready and done
  // words start as its lower 32 bits, which is one below its own word.
  LaneSchedule(std::vector<Slot> slots, std::vector<uint32_t> order,
               uint64_t first_position = 0);

  // Of a lane that another schedule served before: what is to be known of it
  // before anything else is asked. All positions below `first_position` were
  // served or skipped, and skips may be told again. Any value is harmless to
  // other lanes.
  //
  // What the group's words say, in the counted form: it lies in its slot while
  // `ready` is beyond `done`. That may be for a position that is passes beyond
  // the first one: of what lies in its slots, a client can stage and skip any
  // number while one copy drags.
  void ResumeWords(LaneGroup group, uint32_t ready, uint32_t done);
  // Captured form from position `from` on: it lies in its slot, and is not
  // done.
  void ResumeFlag(LaneGroup group, uint64_t from);
  // All groups' words were told.
  void Resumed();

  // The image can be read on the host from now on; until then no load of it is
  // started. False: it no longer can.
  void SetHostReady(LaneGroup group, bool ready);

  // What the client's words say: `word` is the group's done word. Any value is
  // harmless to other lanes.
  void SawDone(LaneGroup group, uint32_t word);
  // Captured form: the group's last position is done.
  void SawDoneFlag(LaneGroup group);
  // The client will not stage positions [from, to), at most one pass of them,
  // and has staged or skipped all below `from`: those are still served.
  // InvalidArgument: from is below an earlier `to` or out of all reach, to is
  // below from, or they are further apart than a pass.
  // ResourceExhausted: nothing is wrong, but the client is too far ahead; ask
  // again after the next NextLoad, Loaded or TakeStale that changed something.
  absl::Status Skip(uint64_t from, uint64_t to);

  // The next copy that can start now, booked as started. While it returns
  // nullopt, blocked_on_host() says whether only the host is missing.
  // `served` gets the positions that were reached without a copy, in order.
  std::optional<Load> NextLoad(std::vector<Serve>& served);
  std::optional<LaneGroup> blocked_on_host() const { return blocked_on_host_; }
  // All positions below are served, and none of them is being loaded, or
  // skipped.
  uint64_t served() const;

  // The copy that `load` began is complete; its ready word has been written.
  void Loaded(const Load& load);

  // The words of a group that is passed over for ever would fall 2^31 positions
  // behind and then compare as if they were ahead. Appends those that are due;
  // to be called before each NextLoad, which does not go on without it.
  // Nothing but a comparison in nearly all calls.
  void TakeStale(std::vector<Refresh>& stale);

  // Every position below was served or skipped; the one at it is next.
  uint64_t head() const { return head_; }
  LaneGroup GroupAt(uint64_t position) const {
    return order_[position % order_.size()];
  }
  // Whether the group lies in its slot or is on its way there.
  bool present(LaneGroup group) const;
  bool loading(LaneGroup group) const;
  // Served, and neither done nor skipped.
  bool in_use(LaneGroup group) const;
  uint64_t last_position(LaneGroup group) const;

 private:
  enum class State { kAbsent, kLoading, kLoaded };
  struct Entry {
    State state = State::kAbsent;
    bool host_ready = false;
    bool in_use = false;
    bool stale = false;     // It is in stale_.
    uint64_t position = 0;  // The last that it was loaded for or served.
    // The words as they would be with 64 bits. That of `done` is a lower bound
    // while the group is in use, that of `ready` while it is loading.
    uint64_t ready_word = 0;
    uint64_t done_word = 0;
    std::vector<LaneGroup> neighbours;  // Whose slots overlap this one's.
  };
  struct Range {
    uint64_t from = 0;
    uint64_t to = 0;
  };

  void FindNeighbours(const std::vector<Slot>& slots);
  void PassSkips();
  void Use(Entry& entry);
  bool PlaceIsFree(const Entry& entry) const;
  void AddStale(LaneGroup group);
  void ResumeInUse(Entry& entry, uint64_t position);
  uint64_t LastBelow(LaneGroup group, uint64_t position) const;

  std::vector<Entry> groups_;
  const std::vector<uint32_t> order_;
  uint64_t head_ = 0;
  uint64_t skipped_to_ = 0;       // No later skip begins below; 0: any may.
  uint64_t resumed_to_ = 0;       // Below it groups were in use from the start.
  std::deque<Range> skips_;       // Beyond the head, in order, apart.
  uint64_t swept_at_ = 0;         // The head when words were last looked at.
  std::vector<LaneGroup> stale_;  // With words that are to be refreshed.
  std::vector<LaneGroup> loading_;
  std::optional<LaneGroup> blocked_on_host_;
};

}  // namespace hoistd

#endif  // HOIST_DAEMON_PLAN_LANE_SCHEDULE_H_
