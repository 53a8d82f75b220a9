// Answers on a helper's line; see helper_call.h.
#ifndef HOIST_DAEMON_IO_HELPER_HELPER_LINE_H_
#define HOIST_DAEMON_IO_HELPER_HELPER_LINE_H_

#include "absl/status/status.h"
#include "hoist/shared/packet_socket.h"

namespace hoistd {

// In the helper's process: reports that all its files are closed and that it
// waits for the next call.
void SayIdle(int line);

// In hoistd.
bool IsIdle(const hoist::Packet& packet);
// The answer's status; leaves the answer's value in `packet.body`.
absl::Status TakeAnswer(hoist::Packet& packet);

}  // namespace hoistd

#endif  // HOIST_DAEMON_IO_HELPER_HELPER_LINE_H_
