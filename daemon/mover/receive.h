#ifndef HOIST_DAEMON_MOVER_RECEIVE_H_
#define HOIST_DAEMON_MOVER_RECEIVE_H_

#include <cstddef>
#include <cstdint>
#include <span>

#include "absl/status/statusor.h"
#include "daemon/core/tensor.h"

namespace hoistd {

// Copies a client's image of `bytes` bytes from its memfd to `to`, or only
// hashes it where `to` is empty. Returns XXH3-128 of the bytes. Blocks.
//
// InvalidArgument: not a memfd sealed against writes and shrinking (the bytes
// could change after they were hashed), or too short.
absl::StatusOr<Fingerprint> ReceiveImage(int memfd, uint64_t bytes,
                                         std::span<std::byte> to);

}  // namespace hoistd

#endif  // HOIST_DAEMON_MOVER_RECEIVE_H_
