// Passes over in-place tensors that the host launches, and whether they have
// run.
#ifndef HOIST_CLIENT_SRC_IN_PLACE_LAUNCHED_PASSES_H_
#define HOIST_CLIENT_SRC_IN_PLACE_LAUNCHED_PASSES_H_

#include <sys/types.h>

#include <cstdint>
#include <optional>
#include <vector>

#include "client/src/device/stream_order.h"
#include "hoist/shared/status.h"

namespace hoist {

// Threads:  the owner's lock, but for HaveRun.
class LaunchedPasses {
 public:
  // A stream that may still run passes, and the last one's end.
  struct On {
    cuda::Stream stream = nullptr;
    std::optional<StreamOrder::Mark> end;  // nullopt: not launched completely.
  };
  struct Seen {
    uint64_t begun = 0;
    std::vector<On> streams;
  };

  void Begin(pid_t thread, cuda::Stream stream);
  // Eager: its stream runs it.
  void Note(cuda::Stream stream);
  void End(pid_t thread, StreamOrder& order);

  // Whether a thread is within a pass; not `but`.
  bool AnyLaunches(pid_t but);
  // No stream runs one.
  bool none() const { return seen_.streams.empty(); }
  const Seen& seen() const { return seen_; }
  // Waits. False: a pass is not launched completely. `own`: it could only be
  // the caller's.
  static Result<bool> HaveRun(const Seen& seen, bool own, StreamOrder& order);
  // These have run. False: another has begun.
  bool Forget(const Seen& seen, pid_t but);

 private:
  struct Launch {
    pid_t thread = 0;
    cuda::Stream stream = nullptr;
  };

  std::vector<Launch> launching_;
  Seen seen_;
};

}  // namespace hoist

#endif  // HOIST_CLIENT_SRC_IN_PLACE_LAUNCHED_PASSES_H_
