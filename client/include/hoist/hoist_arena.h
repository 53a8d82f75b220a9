// Host memory that a worker writes to, for C++. Part of hoist.h, which includes
// this.
#ifndef HOIST_HOIST_ARENA_H_
#define HOIST_HOIST_ARENA_H_

#include <chrono>
#include <cstdint>

#include "hoist/hoist_c.h"
#include "hoist/hoist_types.h"

namespace hoist {
inline namespace v0 {

// Of Arena::Open; see hoist_arena_options.
struct ArenaOptions {
  uint64_t bytes = 0;
  uint32_t device = 0;
  std::chrono::milliseconds deadline{60'000};
};

// Host memory of this worker alone, in blocks that it takes in stream order;
// see hoist_c.h. Move-only; the destructor gives the memory back.
class Arena : internal::Handle<hoist_arena, hoist_arena_close> {
 public:
  // Result of Take: an address and its bytes.
  using Block = hoist_arena_block;

  // `session`: Session::get()'s. Its end gives the memory back, as it does
  // leases.
  static Result<Arena> Open(hoist_session* session,
                            const ArenaOptions& options) {
    auto given = internal::Sized<hoist_arena_options>();
    given.device = options.device;
    given.bytes = options.bytes;
    given.deadline_ms = static_cast<uint64_t>(options.deadline.count());
    return internal::Take<Arena, hoist_arena*>(hoist_arena_open, session,
                                               &given);
  }
  explicit Arena(hoist_arena* handle) : Handle(handle) {}  // Owns it.

  // Later work on `stream` may use the block. ResourceExhausted: no room.
  Result<Block> Take(uint64_t bytes, hoist_stream stream = nullptr) {
    return internal::Take<Block>(hoist_arena_take, handle_.get(), bytes,
                                 stream);
  }
  // Earlier work on `stream` is its last use.
  Status Give(const Block& block, hoist_stream stream = nullptr) {
    return Call(hoist_arena_give, block.address, stream);
  }
  hoist_arena_stats stats() const {
    return Filled<hoist_arena_stats>(hoist_arena_get_stats);
  }
  hoist_arena* get() const { return handle_.get(); }  // For the C API.
};

}  // namespace v0
}  // namespace hoist

#endif  // HOIST_HOIST_ARENA_H_
