// Receives messages with descriptors of any kind.
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

// Hangs up, and drops the client's unreceived messages. Closing their
// descriptors may block: a TCP socket may wait for its peer.
absl::Status DropByHelper(IoHelper& run, int socket);

}  // namespace hoistd

#endif  // HOIST_DAEMON_IO_HELPER_RECEIVE_CALL_H_
