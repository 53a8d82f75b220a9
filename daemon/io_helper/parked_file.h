// Files that hoistd holds open without a call on them.
//
// Even close() of a descriptor may hang: FUSE is asked to flush, whatever was
// done with it. A descriptor that waits in a socket's queue is open as any
// other, but the kernel drops it without a flush. So a file whose file system
// may hang is parked in a socket, which hoistd may hold and close like any
// descriptor, and only helpers take it out.
#ifndef HOIST_DAEMON_IO_HELPER_PARKED_FILE_H_
#define HOIST_DAEMON_IO_HELPER_PARKED_FILE_H_

#include "absl/status/statusor.h"
#include "hoist/shared/unique_fd.h"

namespace hoistd {

// The socket, with another descriptor of the description in its queue.
// ResourceExhausted: no more descriptors may be under way.
absl::StatusOr<hoist::UniqueFd> Park(int fd);

// Another descriptor of the parked file, which stays parked. In a helper.
absl::StatusOr<hoist::UniqueFd> Unpark(int parked);

// Whether `fd` is such a socket. No socket of a client gets that far:
// receive_call.h keeps regular files only.
bool IsParked(int fd);

// Whether calls on the file return whatever others do: its file system lies on
// this machine's own disks or in its memory, and only root can mount it. Not
// FUSE and network file systems, and not overlayfs, below which any of those
// may lie. What is unknown may hang. So may this call: in a helper.
bool IsLocal(int fd);

}  // namespace hoistd

#endif  // HOIST_DAEMON_IO_HELPER_PARKED_FILE_H_
