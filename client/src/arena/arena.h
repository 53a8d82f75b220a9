// Host memory of this worker alone, allocated to its streams.
#ifndef HOIST_CLIENT_SRC_ARENA_ARENA_H_
#define HOIST_CLIENT_SRC_ARENA_ARENA_H_

#include <chrono>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <mutex>

#include "client/src/device/arena_memory.h"
#include "client/src/device/arena_ranges.h"
#include "client/src/session/session.h"
#include "hoist/c/arena.h"
#include "hoist/shared/cuda_driver.h"
#include "hoist/shared/status.h"

namespace hoist {

// Takes and gives need no message: hoistd leases the whole arena until this
// object or the process ends. If hoistd and the session die, the memory stays
// this process's, and nothing changes here.
//
// Threads:  thread-safe. Only the destructor waits for streams.
// Owns:     the mapping, and the lease; shares the session.
// Bounds:   its bytes.
class Arena {
 public:
  struct Block {
    std::byte* address = nullptr;
    uint64_t bytes = 0;
  };
  // As Session::OpenArena. InvalidArgument: hoistd has no such device.
  static Result<std::unique_ptr<Arena>> Open(
      std::shared_ptr<Session> session, const hoist_arena_options& options);
  Arena(const Arena&) = delete;
  Arena& operator=(const Arena&) = delete;
  // Waits for the last uses of given blocks. Taken blocks become void.
  ~Arena();

  // Later work on `stream` may use the block. ResourceExhausted: no room.
  // FailedPrecondition: the stream is under capture. Unavailable: hoistd has
  // told the session to end.
  Result<Block> Take(uint64_t bytes, cuda::Stream stream);
  // Earlier work on `stream` is the block's last use. InvalidArgument: no block
  // begins there.
  Status Give(const void* address, cuda::Stream stream);

  hoist_arena_stats stats() const;
  // This object is the parent's: do not touch it (see fork_guard.h).
  bool forked() const { return session_->forked(); }

 private:
  Arena(std::shared_ptr<Session> session, uint64_t id,
        std::unique_ptr<ArenaMemory> memory, uint64_t bytes);
  Status NoRoom(uint64_t bytes) const;

  const std::shared_ptr<Session> session_;
  const uint64_t id_;
  // Outlives the marks in `ranges_`.
  std::unique_ptr<ArenaMemory> memory_;
  mutable std::mutex mu_;
  // Guarded by mu_.
  std::unique_ptr<ArenaRanges> ranges_;
  uint64_t peak_used_ = 0;
  uint64_t takes_ = 0;
  uint64_t waits_ = 0;
};

}  // namespace hoist

#endif  // HOIST_CLIENT_SRC_ARENA_ARENA_H_
