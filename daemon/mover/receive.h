#ifndef HOIST_DAEMON_MOVER_RECEIVE_H_
#define HOIST_DAEMON_MOVER_RECEIVE_H_

#include <cstddef>
#include <cstdint>
#include <span>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "hoist/shared/mapping.h"

namespace hoistd {

// Copies a part of a client's image, at `offset` in its memfd, to `to`. Blocks.
//
// InvalidArgument: too short, or not sealed against writes and shrinking (the
// bytes could change after their check).
absl::Status ReceiveImage(int memfd, uint64_t offset, std::span<std::byte> to);

// Maps the image for reading, without a copy; errors as above.
absl::StatusOr<hoist::Mapping> MapImage(int memfd, uint64_t bytes);

}  // namespace hoistd

#endif  // HOIST_DAEMON_MOVER_RECEIVE_H_
