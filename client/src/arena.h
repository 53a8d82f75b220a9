// Host memory that this worker alone has, and shares out among its streams.
#ifndef HOIST_CLIENT_SRC_ARENA_H_
#define HOIST_CLIENT_SRC_ARENA_H_

#include <chrono>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <mutex>

#include "client/src/arena_memory.h"
#include "client/src/arena_ranges.h"
#include "client/src/session.h"
#include "hoist/shared/cuda_driver.h"
#include "hoist/shared/status.h"

namespace hoist {

struct ArenaOptions {
  uint32_t device = 0;  // Whose copies reach it.
  uint64_t bytes = 0;
  std::chrono::milliseconds deadline{0};  // For the memory to be there.
};

// What is taken and given needs no message: hoistd leases the arena whole, and
// has it back when this goes, or the process does. If hoistd dies and the
// session with it, the memory stays this process's, and nothing changes here.
//
// Threads:  thread-safe. Nothing waits for a stream but the destructor.
// Owns:     the mapping, and the lease; shares the session.
// Bounds:   its bytes.
class Arena {
 public:
  struct Block {
    std::byte* address = nullptr;
    uint64_t bytes = 0;
  };
  struct Stats {
    uint64_t bytes = 0;
    uint64_t used_bytes = 0;
    uint64_t peak_used_bytes = 0;
    uint64_t largest_free_bytes = 0;
    uint64_t pinned_bytes = 0;
    uint64_t blocks = 0;
    uint64_t takes = 0;
    uint64_t waits = 0;  // Takes that had a stream wait for another.
  };

  // As Session::OpenArena; or InvalidArgument: hoistd has no such device.
  static Result<std::unique_ptr<Arena>> Open(std::shared_ptr<Session> session,
                                             const ArenaOptions& options);
  Arena(const Arena&) = delete;
  Arena& operator=(const Arena&) = delete;
  // Waits until what was given is not used any more. What was not given is
  // void.
  ~Arena();

  // What is put on `stream` from now on may use the block. ResourceExhausted:
  // there is no room for it. FailedPrecondition: the stream is being captured.
  // Unavailable: hoistd has told the session to end.
  Result<Block> Take(uint64_t bytes, cuda::Stream stream);
  // What was put on `stream` before is the block's last use. InvalidArgument:
  // no block begins there.
  Status Give(const void* address, cuda::Stream stream);

  Stats stats() const;
  // This object is the parent's: leave it be (see fork_guard.h).
  bool forked() const { return session_->forked(); }

 private:
  Arena(std::shared_ptr<Session> session, uint64_t id,
        std::unique_ptr<ArenaMemory> memory, uint64_t bytes);
  Status NoRoom(uint64_t bytes) const;

  const std::shared_ptr<Session> session_;
  const uint64_t id_;
  // Outlives the marks that `ranges_` has.
  std::unique_ptr<ArenaMemory> memory_;
  mutable std::mutex mu_;
  // Guarded by mu_.
  std::unique_ptr<ArenaRanges> ranges_;
  uint64_t peak_used_ = 0;
  uint64_t takes_ = 0;
  uint64_t waits_ = 0;
};

}  // namespace hoist

#endif  // HOIST_CLIENT_SRC_ARENA_H_
