#include "daemon/io_helper/parked_file.h"

#include <linux/magic.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <sys/vfs.h>

#include <algorithm>
#include <cerrno>
#include <cstdint>
#include <iterator>
#include <optional>
#include <utility>

#include "daemon/base/status.h"
#include "hoist/shared/packet_socket.h"

namespace hoistd {
namespace {

// Debian 12's linux/magic.h lacks the last ones.
constexpr uint32_t kLocal[] = {
    EXT4_SUPER_MAGIC,  // ext2 and ext3, too.
    XFS_SUPER_MAGIC,      BTRFS_SUPER_MAGIC,    F2FS_SUPER_MAGIC,
    TMPFS_MAGIC,          RAMFS_MAGIC,          HUGETLBFS_MAGIC,
    SQUASHFS_MAGIC,       EROFS_SUPER_MAGIC_V1, ISOFS_SUPER_MAGIC,
    UDF_SUPER_MAGIC,      MSDOS_SUPER_MAGIC,    EXFAT_SUPER_MAGIC,
    REISERFS_SUPER_MAGIC,
    0x2fc12fc1,  // ZFS
    0xca451a4e,  // bcachefs
    0x3153464a,  // JFS
    0x7366746e,  // ntfs3
};

// One byte with one descriptor, without the packet framing.
constexpr size_t kControl = CMSG_SPACE(sizeof(int));

}  // namespace

absl::StatusOr<hoist::UniqueFd> Park(int fd) {
  int ends[2];
  if (socketpair(AF_UNIX, SOCK_DGRAM | SOCK_CLOEXEC, 0, ends) != 0) {
    return ErrnoToStatus(errno, "park a file");
  }
  hoist::UniqueFd parked(ends[0]);
  // The queue keeps the message after its sender is closed.
  const hoist::UniqueFd sender(ends[1]);
  const hoist::Status sent = hoist::SendPacket(sender.get(), {}, {&fd, 1});
  if (!sent.ok()) return Annotate(ToAbsl(sent), "park a file");
  return parked;
}

absl::StatusOr<hoist::UniqueFd> Unpark(int parked) {
  hoist::FrameHeader header;
  iovec part = {&header, sizeof(header)};
  alignas(cmsghdr) char control[kControl];
  msghdr message = {};
  message.msg_iov = &part;
  message.msg_iovlen = 1;
  message.msg_control = control;
  message.msg_controllen = sizeof(control);
  if (recvmsg(parked, &message, MSG_PEEK | MSG_CMSG_CLOEXEC | MSG_DONTWAIT) <
      0) {
    return ErrnoToStatus(errno, "take out a parked file");
  }
  const cmsghdr* c = CMSG_FIRSTHDR(&message);
  if (c == nullptr || c->cmsg_type != SCM_RIGHTS) {
    return absl::InternalError("nothing is parked there");
  }
  int fd;
  std::copy_n(CMSG_DATA(c), sizeof(fd), reinterpret_cast<unsigned char*>(&fd));
  return hoist::UniqueFd(fd);
}

bool IsParked(int fd) {
  int domain = 0;
  socklen_t size = sizeof(domain);
  return getsockopt(fd, SOL_SOCKET, SO_DOMAIN, &domain, &size) == 0;
}

bool IsLocal(int fd) {
  struct statfs fs = {};
  return fstatfs(fd, &fs) == 0 &&
         std::find(std::begin(kLocal), std::end(kLocal),
                   static_cast<uint32_t>(fs.f_type)) != std::end(kLocal);
}

}  // namespace hoistd
