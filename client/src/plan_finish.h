// The wait for the GPU at a plan's end.
#ifndef HOIST_CLIENT_SRC_PLAN_FINISH_H_
#define HOIST_CLIENT_SRC_PLAN_FINISH_H_

#include "client/src/plan_life.h"
#include "client/src/session.h"
#include "client/src/stream_order.h"

namespace hoist {

// Returns once the GPU is done. It may be waiting for bytes of a hoistd that
// is stopped: after kGiveBackPatience without a sign of life the plan is ended,
// which lets its waits through. A GPU that fails has nothing under way any
// more.
void FinishOnDevice(StreamOrder& order, Session& session, PlanLife& life);

}  // namespace hoist

#endif  // HOIST_CLIENT_SRC_PLAN_FINISH_H_
