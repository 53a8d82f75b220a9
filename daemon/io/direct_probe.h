// Probes the kernel for the best way to read a file.
#ifndef HOIST_DAEMON_IO_DIRECT_PROBE_H_
#define HOIST_DAEMON_IO_DIRECT_PROBE_H_

#include <cstdint>
#include <string>

#include "absl/status/statusor.h"
#include "hoist/shared/unique_fd.h"

namespace hoistd {

// Another description of the same file: `flags` as of open(2).
absl::StatusOr<hoist::UniqueFd> Reopen(int fd, int flags);

// A description with O_DIRECT that takes 4 KiB aligned requests, `access` being
// O_RDONLY or O_RDWR. The message says why there is none; FailedPrecondition
// where the file system has none.
absl::StatusOr<hoist::UniqueFd> OpenDirect(int fd, int access);

// The name of a file system on which O_DIRECT is unavailable or useless (in
// memory, or over a network); else empty.
std::string BufferedFileSystem(int fd);

// Share of the file in the page cache, by at most 64 samples, 0 where the
// kernel does not say. By mincore(2), which changes nothing, where we
// own the file or may write it; else by reads that may not wait, each of which
// has its page fetched. `fd` is a description of our own: its readahead is
// turned off meanwhile.
double CachedShare(int fd, uint64_t file_bytes);

}  // namespace hoistd

#endif  // HOIST_DAEMON_IO_DIRECT_PROBE_H_
