// Probes the kernel for the best way to read a file.
#ifndef HOIST_DAEMON_IO_DIRECT_PROBE_H_
#define HOIST_DAEMON_IO_DIRECT_PROBE_H_

#include <cstdint>

#include "absl/status/statusor.h"
#include "hoist/shared/unique_fd.h"

namespace hoistd {

// Opens a second description of the file. `flags`: those of open(2).
absl::StatusOr<hoist::UniqueFd> Reopen(int fd, int flags);

// Reopens the file with O_DIRECT, for requests aligned to 4 KiB. `access`:
// O_RDONLY or O_RDWR. FailedPrecondition: the file needs a larger alignment, or
// has no direct I/O. The message says why.
absl::StatusOr<hoist::UniqueFd> OpenDirect(int fd, int access);

// O_DIRECT is unavailable or useless there: in memory, or over a network.
bool IsBufferedFileSystem(int fd);

// Estimates the share of the file in the page cache from at most 64 samples; 0
// if the kernel does not tell. For a file that we own or may write, it uses
// mincore(2), which changes nothing. For others it uses non-blocking reads,
// which make the kernel fetch each sampled page. `fd` is a description of our
// own: its readahead is off meanwhile.
double CachedShare(int fd, uint64_t file_bytes);

}  // namespace hoistd

#endif  // HOIST_DAEMON_IO_DIRECT_PROBE_H_
