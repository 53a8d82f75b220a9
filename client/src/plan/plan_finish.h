// The wait for the GPU at a plan's end.
#ifndef HOIST_CLIENT_SRC_PLAN_PLAN_FINISH_H_
#define HOIST_CLIENT_SRC_PLAN_PLAN_FINISH_H_

#include "client/src/device/stream_order.h"
#include "client/src/plan/plan_life.h"
#include "client/src/session/session.h"

namespace hoist {

// Returns once the GPU is done. The GPU may wait for a stopped hoistd's bytes,
// so kGiveBackPatience of silence ends the plan, which lets its waits through.
// A failed GPU has no work left. nullptr, and the CPU: nothing to wait for.
void FinishOnDevice(StreamOrder* order, Session& session, PlanLife& life);

}  // namespace hoist

#endif  // HOIST_CLIENT_SRC_PLAN_PLAN_FINISH_H_
