// The memory behind a host pool, of the best pages there are.
#ifndef HOIST_DAEMON_HOST_POOL_MEMORY_H_
#define HOIST_DAEMON_HOST_POOL_MEMORY_H_

#include <cstddef>
#include <cstdint>
#include <span>
#include <string>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "daemon/types/huge_pages.h"
#include "hoist/shared/unique_fd.h"

namespace hoistd {

// `root` is a prefix of /sys; "" except in tests.
HugePages ReadHugePages(const std::string& root);

// New memory for a pool; a keeper may hold it for the next hoistd. `bytes` is a
// multiple of 2 MiB, `best` the best pages it may have. Reserved pages are all
// allocated here, by `threads` threads: a later access cannot fail for want of
// one (SIGBUS). If they cannot all be had, the log says why, and the memory has
// pages of the next kind; these are allocated on first use.
absl::StatusOr<hoist::UniqueFd> MakeHostMemory(uint64_t bytes, PageKind best,
                                               int threads);

// The pages that such memory has where it is mapped with advice for `best`.
PageKind PagesOf(const hoist::UniqueFd& memory, PageKind best,
                 const HugePages& offered);

// Allocates the pages of mapped memory. ResourceExhausted: the kernel has not
// enough; some may be allocated.
absl::Status AllocatePages(std::span<std::byte> memory, int threads);

}  // namespace hoistd

#endif  // HOIST_DAEMON_HOST_POOL_MEMORY_H_
