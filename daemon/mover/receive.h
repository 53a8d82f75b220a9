#ifndef HOIST_DAEMON_MOVER_RECEIVE_H_
#define HOIST_DAEMON_MOVER_RECEIVE_H_

#include <cstddef>
#include <cstdint>
#include <span>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "hoist/shared/mapping.h"

namespace hoistd {

// Copies a client's image from its memfd to `to`, which is as long. Blocks.
//
// InvalidArgument: not a memfd sealed against writes and shrinking (the bytes
// could change after they were looked at), or too short.
absl::Status ReceiveImage(int memfd, std::span<std::byte> to);

// The image where it is, for what is only to be looked at; errors as above.
absl::StatusOr<hoist::Mapping> MapImage(int memfd, uint64_t bytes);

}  // namespace hoistd

#endif  // HOIST_DAEMON_MOVER_RECEIVE_H_
