#ifndef HOIST_DAEMON_MOVER_IMAGE_TARGET_H_
#define HOIST_DAEMON_MOVER_IMAGE_TARGET_H_

#include <cstddef>
#include <cstdint>
#include <span>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "hoist/shared/mapping.h"

namespace hoistd {

// A client's memfd as the target of an image. Its memory must be allocated, and
// stay so: a write to a hole, or to pages that the client removes meanwhile,
// would be charged to hoistd. So the memfd is mapped, then sealed against all
// later writes (which also prevents holes), and only then checked.
//
// Threads:  Fill from several threads, for disjoint ranges.
// Owns:     the mapping. Borrows the memfd in Open alone.
class ImageTarget {
 public:
  // InvalidArgument: not a memfd of `bytes` allocated bytes, sealed against
  // growing and shrinking, and open to further seals.
  // Unimplemented: the kernel has no F_SEAL_FUTURE_WRITE.
  static absl::StatusOr<ImageTarget> Open(int memfd, uint64_t bytes);

  // Copies `from` to [offset, offset + from.size()), which must lie inside.
  // `offset` is a multiple of the page size. Blocks.
  absl::Status Fill(uint64_t offset, std::span<const std::byte> from);

 private:
  explicit ImageTarget(hoist::Mapping memory) : memory_(std::move(memory)) {}

  hoist::Mapping memory_;
};

}  // namespace hoistd

#endif  // HOIST_DAEMON_MOVER_IMAGE_TARGET_H_
