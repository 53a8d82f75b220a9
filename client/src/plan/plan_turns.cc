#include "client/src/plan/plan_turns.h"

#include <algorithm>
#include <string>

namespace hoist {

Status PlanTurns::Stage(uint32_t number, cuda::Stream stream) {
  Group& group = groups_[number];
  if (group.count == 0) {
    if (Status s = TakeTurn(number, stream); !s.ok()) return s;
    held_.push_back(number);
  } else if (!order_.on_cpu() &&
             std::find(group.streams.begin(), group.streams.end(), stream) ==
                 group.streams.end()) {
    if (Status s = lane_.Join(number, group.turn, stream); !s.ok()) return s;
  }
  ++group.count;
  NoteStream(group, stream);
  return Status();
}

Status PlanTurns::TakeTurn(uint32_t group, cuda::Stream stream) {
  if (Status s = lane_.FollowCapture(stream, held_.empty()); !s.ok()) return s;
  if (Status s = CheckPlaceFree(group); !s.ok()) return s;
  Result<PlanLane::Turn> turn = lane_.Take(group, stream);
  if (!turn.ok()) return turn.status();
  groups_[group].turn = turn.value();
  return Status();
}

Status PlanTurns::CheckPlaceFree(uint32_t group) const {
  const PlannedGroup& place = layout_.streamed[group];
  for (const uint32_t other : held_) {
    const PlannedGroup& held = layout_.streamed[other];
    if (!held.Overlaps(place)) continue;
    const auto name = [this](uint32_t g) {
      return "\"" + model_.groups()[g].name + "\"";
    };
    return Status(Code::kFailedPrecondition,
                  "group " + name(place.group) + " takes turns with " +
                      name(held.group) +
                      " in one place, and that is staged; end it first "
                      "(hoist_plan_done), or set a larger budget: with " +
                      std::to_string(layout_.all_bytes) +
                      " bytes all groups of the plan stay on the device");
  }
  return Status();
}

void PlanTurns::NoteStream(Group& group, cuda::Stream stream) {
  if (std::find(group.streams.begin(), group.streams.end(), stream) ==
      group.streams.end()) {
    group.streams.push_back(stream);
  }
}

Status PlanTurns::Done(uint32_t number, cuda::Stream stream) {
  Group& group = groups_[number];
  if (group.count == 0) {
    return Status(Code::kFailedPrecondition, "the group is not staged");
  }
  if (group.count > 1) {
    --group.count;
    NoteStream(group, stream);
    return Status();
  }
  // One word reports all streams' progress. Streams that staged the group may
  // have read it until now, so this stream waits for them.
  for (const cuda::Stream other : group.streams) {
    if (other == stream) continue;
    if (Status s = order_.After(stream, other); !s.ok()) return s;
  }
  if (Status s = lane_.Finish(number, group.turn, stream); !s.ok()) return s;
  group.count = 0;
  group.streams.clear();
  std::erase(held_, number);
  return Status();
}

}  // namespace hoist
