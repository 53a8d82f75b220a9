#include "daemon/device/memfd_memory.h"

#include <fcntl.h>
#include <sys/mman.h>
#include <sys/stat.h>

#include <cerrno>
#include <utility>

#include "absl/memory/memory.h"
#include "absl/strings/str_cat.h"
#include "daemon/base/status.h"
#include "daemon/device/mapped_device.h"
#include "hoist/shared/packet_socket.h"

namespace hoistd {
namespace {

std::byte* AlignedBase(std::byte* data) {
  constexpr uintptr_t kMask = MappedDevice::kGranularity - 1;
  const auto address = reinterpret_cast<uintptr_t>(data);
  return data + (((address + kMask) & ~kMask) - address);
}

// A read-only descriptor of the same file. The kernel always refuses
// mprotect(PROT_WRITE) on its mappings. (F_SEAL_FUTURE_WRITE would also stop
// processes that the mode does not, but the next hoistd, too, which adopts the
// slab.)
absl::StatusOr<hoist::UniqueFd> ReopenReadOnly(int fd) {
  hoist::UniqueFd read_only(
      open(absl::StrCat("/proc/self/fd/", fd).c_str(), O_RDONLY | O_CLOEXEC));
  if (!read_only.valid()) {
    return ErrnoToStatus(errno, "open a slab for reading (is /proc mounted?)");
  }
  return read_only;
}

// A client that may write to a slab must not shrink it, which would kill all
// that map it; nor seal it, which would keep the next hoistd from writing.
int SealsOf(const SlabSpec& spec) {
  return F_SEAL_SHRINK | F_SEAL_GROW | (spec.writable ? F_SEAL_SEAL : 0);
}

// Nobody else opens it, and its size is fixed.
absl::Status Close(const SlabSpec& spec, int fd) {
  if (fchmod(fd, S_IRUSR) != 0) {
    return ErrnoToStatus(errno, "forbid others to open a slab");
  }
  const int seals = SealsOf(spec);
  if (fcntl(fd, F_GET_SEALS) != seals && fcntl(fd, F_ADD_SEALS, seals) != 0) {
    return ErrnoToStatus(errno, "fix a slab's size");
  }
  return absl::OkStatus();
}

absl::Status CheckPersisted(const SlabSpec& spec, int fd) {
  struct stat is = {};
  if (fstat(fd, &is) == 0 && static_cast<uint64_t>(is.st_size) == spec.bytes &&
      fcntl(fd, F_GET_SEALS) == SealsOf(spec)) {
    return absl::OkStatus();
  }
  return absl::InvalidArgumentError(
      absl::StrCat("what was kept of slab ", spec.id.number(),
                   " is no slab of ", spec.bytes, " bytes"));
}

}  // namespace

absl::StatusOr<std::unique_ptr<MemfdMemory>> MemfdMemory::Create(
    uint64_t span_bytes) {
  HOIST_ASSIGN_OR_RETURN(
      hoist::Mapping span,
      ToAbsl(hoist::Mapping::Reserve(span_bytes + MappedDevice::kGranularity)));
  return absl::WrapUnique(new MemfdMemory(std::move(span)));
}

MemfdMemory::MemfdMemory(hoist::Mapping span)
    : span_(std::move(span)), base_(AlignedBase(span_.data())) {}

size_t MemfdMemory::PlaceOf(const SlabSpec& spec) const {
  return static_cast<size_t>(base_ - span_.data()) + spec.offset;
}

absl::StatusOr<SlabMemory::Fds> MemfdMemory::Place(const SlabSpec& spec,
                                                   hoist::UniqueFd original) {
  Fds fds;
  fds.original = std::move(original);
  if (fds.original.valid()) {
    HOIST_RETURN_IF_ERROR(CheckPersisted(spec, fds.original.get()));
  } else {
    HOIST_ASSIGN_OR_RETURN(
        fds.original, ToAbsl(hoist::CreateMemfd("hoist-slab", spec.bytes)));
  }
  if (!spec.writable) {
    HOIST_ASSIGN_OR_RETURN(fds.shared, ReopenReadOnly(fds.original.get()));
  }
  HOIST_RETURN_IF_ERROR(Close(spec, fds.original.get()));
  HOIST_RETURN_IF_ERROR(
      ToAbsl(span_.PlaceFd(PlaceOf(spec), fds.original.get(), spec.bytes,
                           hoist::Mapping::Access::kReadWrite)));
  // Advice alone: it fails where the kernel has no huge pages.
  madvise(base_ + spec.offset, spec.bytes, MADV_HUGEPAGE);
  return fds;
}

absl::Status MemfdMemory::Unplace(const SlabSpec& spec) {
  return ToAbsl(span_.Unplace(PlaceOf(spec), spec.bytes));
}

// Frees the pages, in all mappings, too: an unused slab takes no memory.
absl::Status MemfdMemory::Zero(const SlabSpec& spec, int original) {
  if (fallocate(original, FALLOC_FL_PUNCH_HOLE | FALLOC_FL_KEEP_SIZE, 0,
                static_cast<off_t>(spec.bytes)) == 0) {
    return absl::OkStatus();
  }
  return ErrnoToStatus(errno, "empty a slab");
}

}  // namespace hoistd
