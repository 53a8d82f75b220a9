// Waiting for a lane's word on the CPU.
#ifndef HOIST_CLIENT_SRC_DEVICE_WORD_WAIT_H_
#define HOIST_CLIENT_SRC_DEVICE_WORD_WAIT_H_

#include <chrono>
#include <cstdint>

#include "hoist/shared/lane_layout.h"

namespace hoist {

// Waits until `word` has reached `target` (lane::Reached); false: it had not by
// `deadline`. A CPU that writes the word wakes its waiters (WakeWord); a GPU
// cannot, so the wait polls at least every millisecond. A writer that looks
// after its write sees the caller's earlier stores (PassBoundary).
bool WaitWord(lane::Word& word, uint32_t target,
              std::chrono::steady_clock::time_point deadline);

// In every process that maps the word.
void WakeWord(lane::Word& word);

}  // namespace hoist

#endif  // HOIST_CLIENT_SRC_DEVICE_WORD_WAIT_H_
