// Files that hoistd holds open without a call on them.
//
// Even close() may hang: it asks FUSE to flush. A descriptor in a socket's
// queue stays open, and the kernel drops it without a flush. So a file whose
// file system may hang is parked in a socket. hoistd can hold and close that
// socket like any descriptor; only helpers take the file out.
#ifndef HOIST_DAEMON_IO_HELPER_PARKED_FILE_H_
#define HOIST_DAEMON_IO_HELPER_PARKED_FILE_H_

#include "absl/status/statusor.h"
#include "hoist/shared/unique_fd.h"

namespace hoistd {

// A socket with a duplicate of the descriptor in its queue. ResourceExhausted:
// too many descriptors are in flight (RLIMIT_NOFILE).
absl::StatusOr<hoist::UniqueFd> Park(int fd);

// A duplicate of the parked file's descriptor; the file stays parked. For
// helpers.
absl::StatusOr<hoist::UniqueFd> Unpark(int parked);

// Whether `fd` is such a socket. A client's socket never gets here:
// receive_call.h keeps regular files only.
bool IsParked(int fd);

// Whether calls on the file always return: its file system is on local disks or
// in memory, and only root can mount it. False for FUSE, network file systems,
// overlayfs (which may lie over them) and unknown ones. This call may hang: for
// helpers.
bool IsLocal(int fd);

}  // namespace hoistd

#endif  // HOIST_DAEMON_IO_HELPER_PARKED_FILE_H_
