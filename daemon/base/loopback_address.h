#ifndef HOIST_DAEMON_BASE_LOOPBACK_ADDRESS_H_
#define HOIST_DAEMON_BASE_LOOPBACK_ADDRESS_H_

#include <sys/socket.h>

#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"

namespace hoistd {

// A TCP address that only this machine can reach.
struct LoopbackAddress {
  sockaddr_storage address = {};
  socklen_t bytes = 0;
};

// Parses "127.0.0.1:9464" (all of 127.0.0.0/8) or "[::1]:9464".
// InvalidArgument: anything else; the message says how to reach other machines.
absl::StatusOr<LoopbackAddress> ParseLoopback(absl::string_view text);

}  // namespace hoistd

#endif  // HOIST_DAEMON_BASE_LOOPBACK_ADDRESS_H_
