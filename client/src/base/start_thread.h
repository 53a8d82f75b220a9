#ifndef HOIST_CLIENT_SRC_BASE_START_THREAD_H_
#define HOIST_CLIENT_SRC_BASE_START_THREAD_H_

#include <cstdint>
#include <functional>
#include <thread>

#include "hoist/shared/status.h"

namespace hoist {

// The only place that starts threads: std::thread throws if the system refuses.
// The thread blocks all signals, since the program's handlers do not know its
// stack. ResourceExhausted: a limit of tasks or memory; `thread` is unchanged.
Status StartThread(std::thread* thread, std::function<void()> body);

// Runs `body` on this thread and `helpers` others at once, or on fewer if the
// system starts no more. Returns once all have ended. `body` throws nothing.
void WithHelpers(uint64_t helpers, const std::function<void()>& body);

}  // namespace hoist

#endif  // HOIST_CLIENT_SRC_BASE_START_THREAD_H_
