// How long a thread's calls wait for a hoistd that gives no sign of life.
#ifndef HOIST_CLIENT_SRC_PATIENCE_H_
#define HOIST_CLIENT_SRC_PATIENCE_H_

#include <chrono>

namespace hoist {

// Of this thread. 0, as at first: for as long as the call's deadline.
std::chrono::milliseconds Patience();
// Returns what it was.
std::chrono::milliseconds SetPatience(std::chrono::milliseconds patience);

// Whoever gives something back waits no longer: hoistd has the message, and
// reads it once it goes on. hoist_c.h states it.
inline constexpr std::chrono::milliseconds kGiveBackPatience{5'000};
// That, or much less where another session of this process has just waited in
// vain: several of them are not to add up.
std::chrono::milliseconds GiveBackPatience();
void NoteSilence();

}  // namespace hoist

#endif  // HOIST_CLIENT_SRC_PATIENCE_H_
