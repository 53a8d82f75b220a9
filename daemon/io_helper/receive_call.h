// Receiving messages whose descriptors may be of anything.
#ifndef HOIST_DAEMON_IO_HELPER_RECEIVE_CALL_H_
#define HOIST_DAEMON_IO_HELPER_RECEIVE_CALL_H_

#include <cstdint>
#include <optional>

#include "absl/status/statusor.h"
#include "daemon/io_helper/io_helper.h"
#include "hoist/shared/packet_socket.h"

namespace hoistd {

// As hoist::ReceivePacket, `leave_sealed`, on a connection of a client's, but
// that hoistd gets no descriptor which may hang when it is closed or looked at:
// memfds and files in memory come as they are, other regular files parked, and
// in the place of anything else comes something that is no file either.
// nullopt: there was nothing to receive.
absl::StatusOr<std::optional<hoist::Packet>> ReceiveByHelper(IoHelper& run,
                                                             int socket,
                                                             uint64_t max_body);

// Hangs up, and drops what the client sent and nobody received. Its descriptors
// may make that last: a TCP socket may wait for its peer when it is closed.
absl::Status DropByHelper(IoHelper& run, int socket);

}  // namespace hoistd

#endif  // HOIST_DAEMON_IO_HELPER_RECEIVE_CALL_H_
