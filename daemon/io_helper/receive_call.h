// Receives messages with descriptors of any kind.
#ifndef HOIST_DAEMON_IO_HELPER_RECEIVE_CALL_H_
#define HOIST_DAEMON_IO_HELPER_RECEIVE_CALL_H_

#include <cstdint>
#include <optional>

#include "absl/status/statusor.h"
#include "daemon/io_helper/io_helper.h"
#include "hoist/shared/packet_socket.h"

namespace hoistd {

// hoist::ReceivePacket with `leave_sealed`, on a client's connection. hoistd
// gets no descriptor that may hang: memfds and files in memory arrive
// unchanged, other regular files parked, and a placeholder replaces anything
// else. nullopt: there was nothing to receive.
absl::StatusOr<std::optional<hoist::Packet>> ReceiveByHelper(IoHelper& run,
                                                             int socket,
                                                             uint64_t max_body);

// Hangs up, and drops the client's unreceived messages. The close of their
// descriptors may block: a TCP socket may wait for its peer.
absl::Status DropByHelper(IoHelper& run, int socket);

}  // namespace hoistd

#endif  // HOIST_DAEMON_IO_HELPER_RECEIVE_CALL_H_
