// Waiting for a lane's word on the CPU.
#ifndef HOIST_CLIENT_SRC_WORD_WAIT_H_
#define HOIST_CLIENT_SRC_WORD_WAIT_H_

#include <chrono>
#include <cstdint>

#include "hoist/shared/lane_layout.h"

namespace hoist {

// Waits until `word` has reached `target` (lane::Reached); false: it had not by
// `deadline`. A CPU that writes the word wakes its waiters (WakeWord); a GPU
// cannot, so the word is looked at again in slices of at most a millisecond.
// What the caller stored before is seen by whoever writes the word and then
// looks (PassBoundary).
bool WaitWord(lane::Word& word, uint32_t target,
              std::chrono::steady_clock::time_point deadline);

// Of every process that maps the word.
void WakeWord(lane::Word& word);

}  // namespace hoist

#endif  // HOIST_CLIENT_SRC_WORD_WAIT_H_
