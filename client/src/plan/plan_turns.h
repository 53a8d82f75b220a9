// The staged groups of a plan: their turns, streams and occupied places.
#ifndef HOIST_CLIENT_SRC_PLAN_PLAN_TURNS_H_
#define HOIST_CLIENT_SRC_PLAN_PLAN_TURNS_H_

#include <cstdint>
#include <vector>

#include "client/src/device/stream_order.h"
#include "client/src/messages/model_table.h"
#include "client/src/plan/plan_lane.h"
#include "client/src/plan/plan_layout.h"
#include "hoist/shared/status.h"

namespace hoist {

// Groups are by the lane's numbers. Nothing here waits for bytes: if the order
// is on the CPU, the caller awaits the turn, and reports it.
//
// Threads:  one at a time.
// Owns:     the staged turns. Borrows the rest, which outlives it.
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

  // The first stage takes the group's turn; later ones make other streams wait
  // for it. FailedPrecondition: a group in the same place is staged, or a
  // capture begins while any group is.
  Status Stage(uint32_t group, cuda::Stream stream);
  // Ends one stage. The last one marks the group done, behind earlier work on
  // all streams that staged it. FailedPrecondition: the group is not staged.
  Status Done(uint32_t group, cuda::Stream stream);

  // FailedPrecondition: a group in the same place is staged.
  Status CheckPlaceFree(uint32_t group) const;

  const PlanLane::Turn& turn(uint32_t group) const {
    return groups_[group].turn;
  }
  // The turn awaited on the CPU has come.
  void Came(uint32_t group) { groups_[group].turn.ready = true; }

 private:
  struct Group {
    uint32_t count = 0;
    PlanLane::Turn turn;                // While staged.
    std::vector<cuda::Stream> streams;  // Of its stages and dones.
  };

  Status TakeTurn(uint32_t group, cuda::Stream stream);
  static void NoteStream(Group& group, cuda::Stream stream);

  PlanLane& lane_;
  StreamOrder& order_;
  const PlanLayout& layout_;
  const ModelTable& model_;
  std::vector<Group> groups_;
  std::vector<uint32_t> held_;  // The staged ones.
};

}  // namespace hoist

#endif  // HOIST_CLIENT_SRC_PLAN_PLAN_TURNS_H_
