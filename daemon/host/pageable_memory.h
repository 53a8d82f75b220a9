#ifndef HOIST_DAEMON_HOST_PAGEABLE_MEMORY_H_
#define HOIST_DAEMON_HOST_PAGEABLE_MEMORY_H_

#include <cstddef>
#include <cstdint>
#include <memory>
#include <span>
#include <string>
#include <utility>
#include <vector>

#include "absl/base/thread_annotations.h"
#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/synchronization/mutex.h"
#include "hoist/shared/mapping.h"

namespace hoistd {

// Host memory that is not pinned, of this process alone. Its pages are made
// with the first use of each, and kept.
//
// Threads:  thread-safe.
// Bounds:   as created; a page is made only if the machine and the cgroup have
//           kSpareBytes more free, since a failing access ends the process.
class PageableMemory {
 public:
  static constexpr uint64_t kSpareBytes = uint64_t{256} << 20;

  // `bytes` > 0, a multiple of 2 MiB. `root` is a prefix of /proc and /sys; ""
  // except in tests. ResourceExhausted: the kernel does not overcommit.
  static absl::StatusOr<std::unique_ptr<PageableMemory>> Create(
      uint64_t bytes, std::string root = "");

  std::span<std::byte> span() const { return mapping_.span(); }

  // Makes the pages of `part`, which must precede its first write.
  // ResourceExhausted: not enough memory is free now.
  absl::Status MakePages(std::span<std::byte> part) ABSL_LOCKS_EXCLUDED(mu_);
  // The rest appears with use.
  uint64_t made_bytes() const ABSL_LOCKS_EXCLUDED(mu_);

 private:
  PageableMemory(hoist::Mapping mapping, std::string root);

  const hoist::Mapping mapping_;
  const std::string root_;
  mutable absl::Mutex mu_;
  std::vector<bool> made_ ABSL_GUARDED_BY(mu_);  // By 2 MiB.
};

}  // namespace hoistd

#endif  // HOIST_DAEMON_HOST_PAGEABLE_MEMORY_H_
