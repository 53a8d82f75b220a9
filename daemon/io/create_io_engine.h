#ifndef HOIST_DAEMON_IO_CREATE_IO_ENGINE_H_
#define HOIST_DAEMON_IO_CREATE_IO_ENGINE_H_

#include <cstdint>
#include <memory>

#include "absl/status/statusor.h"
#include "daemon/types/io_engine.h"

namespace hoistd {

enum class IoChoice {
  kAuto,     // io_uring for direct files where available, else threads.
  kUring,    // io_uring for everything, or an error.
  kThreads,  // Threads for everything.
};

struct IoOptions {
  IoChoice choice = IoChoice::kAuto;
  uint64_t bounce_bytes = uint64_t{64} << 20;  // io_uring's bytes in flight.
  int uring_workers = 0;                       // 0: 2 from 4 CPUs on, else 1.
  int threads = 0;                             // 0: half the CPUs, 4 to 8.
};

// info().fallbacks names the unavailable features, and the reasons.
// InvalidArgument: an option is out of range. PermissionDenied, Unimplemented:
// kUring was requested, and the kernel or the container refuses it.
absl::StatusOr<std::unique_ptr<IoEngine>> CreateIoEngine(
    const IoOptions& options);

}  // namespace hoistd

#endif  // HOIST_DAEMON_IO_CREATE_IO_ENGINE_H_
