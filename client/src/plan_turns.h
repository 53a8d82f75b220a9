// A plan's streamed groups as they are staged: whose turn is taken, for which
// streams, and whose place that keeps.
#ifndef HOIST_CLIENT_SRC_PLAN_TURNS_H_
#define HOIST_CLIENT_SRC_PLAN_TURNS_H_

#include <cstdint>
#include <vector>

#include "client/src/model_table.h"
#include "client/src/plan_lane.h"
#include "client/src/plan_layout.h"
#include "client/src/stream_order.h"
#include "hoist/shared/status.h"

namespace hoist {

// Groups are the lane's numbers. Nothing here waits for bytes: where the order
// is kept on the CPU, who staged awaits the turn, and says that it came.
//
// Threads:  one at a time.
// Owns:     what is staged. Borrows the rest, which outlives it.
class PlanTurns {
 public:
  PlanTurns(PlanLane& lane, StreamOrder& order, const PlanLayout& layout,
            const ModelTable& model)
      : lane_(lane),
        order_(order),
        layout_(layout),
        model_(model),
        groups_(layout.streamed.size()) {
    held_.reserve(groups_.size());
  }

  // The first stage takes the group's turn; further ones let other streams
  // wait for it too. FailedPrecondition: a group in the same place is staged,
  // or a capture begins while any is.
  Status Stage(uint32_t group, cuda::Stream stream);
  // FailedPrecondition: not as often as it was staged. The last one says that
  // all streams that staged it are done, up to what is on them now.
  Status Done(uint32_t group, cuda::Stream stream);

  // FailedPrecondition: a group in the same place is staged.
  Status CheckPlaceFree(uint32_t group) const;

  const PlanLane::Turn& turn(uint32_t group) const {
    return groups_[group].turn;
  }
  // What was awaited on the CPU is there.
  void Came(uint32_t group) { groups_[group].turn.ready = true; }

 private:
  struct Group {
    uint32_t count = 0;
    PlanLane::Turn turn;                // While staged.
    std::vector<cuda::Stream> streams;  // That staged it or are done with it.
  };

  Status TakeTurn(uint32_t group, cuda::Stream stream);
  static void NoteStream(Group& group, cuda::Stream stream);

  PlanLane& lane_;
  StreamOrder& order_;
  const PlanLayout& layout_;
  const ModelTable& model_;
  std::vector<Group> groups_;
  std::vector<uint32_t> held_;  // Those that are staged.
};

}  // namespace hoist

#endif  // HOIST_CLIENT_SRC_PLAN_TURNS_H_
