#include "daemon/mover/receive.h"

#include <fcntl.h>
#include <sys/stat.h>
#include <unistd.h>

#include <cerrno>

#include "daemon/base/status.h"

namespace hoistd {
namespace {

absl::Status CheckSealed(int memfd, uint64_t bytes) {
  constexpr int kNeeded = F_SEAL_WRITE | F_SEAL_SHRINK;
  const int seals = fcntl(memfd, F_GET_SEALS);
  if (seals < 0 || (seals & kNeeded) != kNeeded) {
    return absl::InvalidArgumentError(
        "a published image must come in a memfd sealed with F_SEAL_WRITE and "
        "F_SEAL_SHRINK");
  }
  struct stat info;
  if (fstat(memfd, &info) != 0) return ErrnoToStatus(errno, "stat the image");
  if (static_cast<uint64_t>(info.st_size) < bytes) {
    return absl::InvalidArgumentError(
        "the published memfd is shorter than the group's image");
  }
  return absl::OkStatus();
}

}  // namespace

absl::Status ReceiveImage(int memfd, uint64_t offset, std::span<std::byte> to) {
  HOIST_RETURN_IF_ERROR(CheckSealed(memfd, offset + to.size()));
  while (!to.empty()) {
    const ssize_t n =
        pread(memfd, to.data(), to.size(), static_cast<off_t>(offset));
    if (n < 0 && errno == EINTR) continue;
    if (n <= 0) return ErrnoToStatus(n < 0 ? errno : EIO, "read the image");
    offset += static_cast<uint64_t>(n);
    to = to.subspan(static_cast<size_t>(n));
  }
  return absl::OkStatus();
}

absl::StatusOr<hoist::Mapping> MapImage(int memfd, uint64_t bytes) {
  HOIST_RETURN_IF_ERROR(CheckSealed(memfd, bytes));
  return ToAbsl(
      hoist::Mapping::OfFd(memfd, bytes, hoist::Mapping::Access::kRead));
}

}  // namespace hoistd
