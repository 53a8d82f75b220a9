#include "daemon/mover/image_target.h"

#include <fcntl.h>
#include <sys/mman.h>
#include <sys/stat.h>

#include <cerrno>
#include <cstring>
#include <utility>

#include "absl/strings/str_cat.h"
#include "daemon/base/status.h"

namespace hoistd {
namespace {

#ifndef F_SEAL_FUTURE_WRITE
constexpr int F_SEAL_FUTURE_WRITE = 0x10;
#endif
#ifndef MADV_POPULATE_WRITE
constexpr int MADV_POPULATE_WRITE = 23;
#endif
constexpr uint64_t kBlockBytes = 512;  // The unit of st_blocks.

absl::Status Refused(absl::string_view why) {
  return absl::InvalidArgumentError(absl::StrCat(
      "the memfd that the image is read into ", why,
      "; it must be open for reading and writing, allocated as a whole, and "
      "sealed with F_SEAL_GROW and F_SEAL_SHRINK alone"));
}

absl::Status CheckSize(int memfd, uint64_t bytes) {
  constexpr int kNeeded = F_SEAL_GROW | F_SEAL_SHRINK;
  const int seals = fcntl(memfd, F_GET_SEALS);
  if (seals < 0 || (seals & kNeeded) != kNeeded) {
    return Refused("can change its size");
  }
  struct stat info;
  if (fstat(memfd, &info) != 0) return ErrnoToStatus(errno, "stat the memfd");
  if (static_cast<uint64_t>(info.st_size) != bytes) {
    return Refused(absl::StrCat("has ", info.st_size,
                                " bytes, and the image has ", bytes));
  }
  return absl::OkStatus();
}

// From here on its pages cannot be removed.
absl::Status SealAgainstWrites(int memfd) {
  if (fcntl(memfd, F_ADD_SEALS, F_SEAL_FUTURE_WRITE) == 0) {
    return absl::OkStatus();
  }
  if (errno == EINVAL) {
    return absl::UnimplementedError(
        "this kernel has no F_SEAL_FUTURE_WRITE; host images need Linux 5.1");
  }
  return Refused("cannot be sealed");
}

absl::Status CheckAllocated(int memfd, uint64_t bytes) {
  struct stat info;
  if (fstat(memfd, &info) != 0) return ErrnoToStatus(errno, "stat the memfd");
  if (static_cast<uint64_t>(info.st_blocks) * kBlockBytes < bytes) {
    return Refused("has holes");
  }
  return absl::OkStatus();
}

}  // namespace

absl::StatusOr<ImageTarget> ImageTarget::Open(int memfd, uint64_t bytes) {
  HOIST_RETURN_IF_ERROR(CheckSize(memfd, bytes));
  if (bytes == 0) return ImageTarget(hoist::Mapping());
  hoist::Result<hoist::Mapping> memory =
      hoist::Mapping::OfFd(memfd, bytes, hoist::Mapping::Access::kReadWrite);
  if (!memory.ok()) return Refused("cannot be mapped for writing");
  HOIST_RETURN_IF_ERROR(SealAgainstWrites(memfd));
  HOIST_RETURN_IF_ERROR(CheckAllocated(memfd, bytes));
  return ImageTarget(std::move(memory).value());
}

absl::Status ImageTarget::Fill(uint64_t offset,
                               std::span<const std::byte> from) {
  std::byte* to = memory_.data() + offset;
  // One call instead of a fault per page; unavailable pages are an error, not a
  // SIGBUS. Absent before Linux 5.14.
  if (madvise(to, from.size(), MADV_POPULATE_WRITE) != 0 && errno != EINVAL) {
    return ErrnoToStatus(errno, "bring up the client's memory");
  }
  std::memcpy(to, from.data(), from.size());
  return absl::OkStatus();
}

}  // namespace hoistd
