#include "daemon/io/direct_probe.h"

#include <fcntl.h>
#include <linux/magic.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <sys/uio.h>
#include <sys/vfs.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <iterator>
#include <random>

#include "absl/strings/str_cat.h"
#include "daemon/base/status.h"
#include "daemon/io/aligned_buffer.h"
#include "daemon/io/read_cutter.h"

namespace hoistd {
namespace {

// The last ones, Lustre, GPFS and BeeGFS, are not in Debian 12's linux/magic.h.
constexpr uint32_t kBuffered[] = {
    TMPFS_MAGIC,     RAMFS_MAGIC,      HUGETLBFS_MAGIC,  NFS_SUPER_MAGIC,
    SMB_SUPER_MAGIC, CIFS_SUPER_MAGIC, SMB2_SUPER_MAGIC, CEPH_SUPER_MAGIC,
    AFS_SUPER_MAGIC, V9FS_MAGIC,       FUSE_SUPER_MAGIC, 0x0bd00bd0,
    0x47504653,      0x19830326};

absl::Status CheckAlignment(int fd) {
#ifdef STATX_DIOALIGN
  struct statx st = {};
  if (statx(fd, "", AT_EMPTY_PATH, STATX_DIOALIGN, &st) == 0 &&
      (st.stx_mask & STATX_DIOALIGN) != 0) {
    if (st.stx_dio_offset_align == 0) {
      return absl::FailedPreconditionError("the file takes no direct I/O");
    }
    const uint32_t needed =
        std::max(st.stx_dio_offset_align, st.stx_dio_mem_align);
    if (needed > kDirectAlignment) {
      return absl::FailedPreconditionError(absl::StrCat(
          "direct I/O needs an alignment of ", needed, " bytes here"));
    }
  }
#endif
  // Older kernels do not tell, and some file systems refuse only the read.
  HOIST_ASSIGN_OR_RETURN(AlignedBuffer buffer,
                         AlignedBuffer::Create(kDirectAlignment));
  if (pread(fd, buffer.data(), kDirectAlignment, 0) < 0) {
    return ErrnoToStatus(errno, "direct read");
  }
  return absl::OkStatus();
}

// Without ownership or write access, mincore(2) reports all pages resident.
bool MincoreTells(int fd) {
  const std::string path = absl::StrCat("/proc/self/fd/", fd);
  struct stat st = {};
  return (fstat(fd, &st) == 0 && st.st_uid == geteuid()) ||
         faccessat(AT_FDCWD, path.c_str(), W_OK, AT_EACCESS) == 0;
}

uint64_t CachedByMincore(int fd, uint64_t file_bytes, uint64_t samples) {
  const auto page = static_cast<uint64_t>(sysconf(_SC_PAGESIZE));
  void* at = mmap(nullptr, file_bytes, PROT_READ, MAP_SHARED, fd, 0);
  if (at == MAP_FAILED) return 0;
  uint64_t cached = 0;
  for (uint64_t i = 0; i < samples; ++i) {
    // The middle of each of `samples` equal parts.
    const uint64_t offset = file_bytes / samples * i + file_bytes / samples / 2;
    unsigned char in = 0;
    mincore(static_cast<char*>(at) + offset / page * page, 1, &in);
    cached += in & 1;
  }
  munmap(at, file_bytes);
  return cached;
}

// A non-blocking read still makes the kernel fetch the page. So each call
// samples other places, and the share is slightly too large on a fast disk.
uint64_t CachedByRead(int fd, uint64_t file_bytes, uint64_t samples) {
  posix_fadvise(fd, 0, 0, POSIX_FADV_RANDOM);
  std::minstd_rand places(std::random_device{}());
  uint64_t cached = 0;
  for (uint64_t i = 0; i < samples; ++i) {
    const uint64_t offset =
        std::uniform_int_distribution<uint64_t>(0, file_bytes - 1)(places);
    char byte = 0;
    const iovec into = {&byte, 1};
    if (preadv2(fd, &into, 1, static_cast<off_t>(offset), RWF_NOWAIT) == 1) {
      ++cached;
    }
  }
  posix_fadvise(fd, 0, 0, POSIX_FADV_NORMAL);
  return cached;
}

}  // namespace

absl::StatusOr<hoist::UniqueFd> Reopen(int fd, int flags) {
  const std::string path = absl::StrCat("/proc/self/fd/", fd);
  hoist::UniqueFd reopened(open(path.c_str(), flags | O_CLOEXEC));
  if (!reopened.valid()) return ErrnoToStatus(errno, "reopen");
  return reopened;
}

absl::StatusOr<hoist::UniqueFd> OpenDirect(int fd, int access) {
  auto direct = Reopen(fd, access | O_DIRECT);
  if (!direct.ok()) return Annotate(direct.status(), "with O_DIRECT");
  HOIST_RETURN_IF_ERROR(CheckAlignment(direct->get()));
  return direct;
}

bool IsBufferedFileSystem(int fd) {
  struct statfs fs = {};
  return fstatfs(fd, &fs) == 0 &&
         std::ranges::find(kBuffered, static_cast<uint32_t>(fs.f_type)) !=
             std::end(kBuffered);
}

double CachedShare(int fd, uint64_t file_bytes) {
  if (file_bytes == 0) return 0;
  const uint64_t samples = std::min<uint64_t>(64, 1 + file_bytes / 4096);
  const uint64_t cached = MincoreTells(fd)
                              ? CachedByMincore(fd, file_bytes, samples)
                              : CachedByRead(fd, file_bytes, samples);
  return static_cast<double>(cached) / static_cast<double>(samples);
}

}  // namespace hoistd
