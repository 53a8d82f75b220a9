#ifndef HOIST_DAEMON_MOVER_IMAGE_TARGET_H_
#define HOIST_DAEMON_MOVER_IMAGE_TARGET_H_

#include <cstddef>
#include <cstdint>
#include <span>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "hoist/shared/mapping.h"

namespace hoistd {

// A client's memfd that an image is copied to. Its memory must be there
// already, and stays: what hoistd wrote into a hole, or into pages that the
// client took out while it wrote, would be allocated on hoistd's account. So it
// is mapped, then sealed against everybody's later writes (which takes holes
// out of the client's reach too), and only then looked at.
//
// Threads:  Fill from several threads, for ranges that do not overlap.
// Owns:     the mapping. Borrows the memfd in Open alone.
class ImageTarget {
 public:
  // InvalidArgument: not a memfd of `bytes` bytes, all allocated, that is
  // sealed against growing and shrinking and lets itself be sealed further.
  // Unimplemented: the kernel has no F_SEAL_FUTURE_WRITE.
  static absl::StatusOr<ImageTarget> Open(int memfd, uint64_t bytes);

  // Copies `from` to [offset, offset + from.size()), which lies inside. The
  // offset is a multiple of the page size. Blocks.
  absl::Status Fill(uint64_t offset, std::span<const std::byte> from);

 private:
  explicit ImageTarget(hoist::Mapping memory) : memory_(std::move(memory)) {}

  hoist::Mapping memory_;
};

}  // namespace hoistd

#endif  // HOIST_DAEMON_MOVER_IMAGE_TARGET_H_
