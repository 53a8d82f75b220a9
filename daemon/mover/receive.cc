#include "daemon/mover/receive.h"

#include <fcntl.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <vector>

#include "daemon/base/hash.h"
#include "daemon/base/status.h"

namespace hoistd {
namespace {

constexpr uint64_t kPieceBytes = 1 << 20;  // Stays in the cache for the hash.

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

absl::StatusOr<Fingerprint> ReceiveImage(int memfd, uint64_t bytes,
                                         std::span<std::byte> to) {
  HOIST_RETURN_IF_ERROR(CheckSealed(memfd, bytes));
  std::vector<std::byte> buffer(to.empty() ? kPieceBytes : 0);
  Hasher hasher;
  uint64_t done = 0;
  while (done < bytes) {
    const uint64_t want = std::min(kPieceBytes, bytes - done);
    const std::span<std::byte> piece =
        to.empty() ? std::span<std::byte>(buffer).first(want)
                   : to.subspan(done, want);
    const ssize_t n =
        pread(memfd, piece.data(), want, static_cast<off_t>(done));
    if (n < 0 && errno == EINTR) continue;
    if (n <= 0) return ErrnoToStatus(n < 0 ? errno : EIO, "read the image");
    hasher.Bytes(piece.first(static_cast<size_t>(n)));
    done += static_cast<uint64_t>(n);
  }
  return hasher.Finish();
}

}  // namespace hoistd
