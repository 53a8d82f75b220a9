// How long a thread's calls wait for a silent hoistd.
#ifndef HOIST_CLIENT_SRC_BASE_PATIENCE_H_
#define HOIST_CLIENT_SRC_BASE_PATIENCE_H_

#include <chrono>

namespace hoist {

// This thread's patience. 0, the default: until the call's deadline.
std::chrono::milliseconds Patience();
// Returns the old value.
std::chrono::milliseconds SetPatience(std::chrono::milliseconds patience);

// Limit of calls that give something back: hoistd has the message, and reads it
// when it continues. hoist/c/stage.h and hoist/c/plan.h promise it.
inline constexpr std::chrono::milliseconds kGiveBackPatience{5'000};
// kGiveBackPatience, or 0.1 s soon after a silence in this process: the waits
// of its sessions must not add up.
std::chrono::milliseconds GiveBackPatience();
void NoteSilence();

}  // namespace hoist

#endif  // HOIST_CLIENT_SRC_BASE_PATIENCE_H_
