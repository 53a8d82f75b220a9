// The C API's arenas.
#include <utility>

#include "client/src/arena.h"
#include "client/src/c_handles.h"
#include "client/src/fork_guard.h"

struct hoist_arena {
  std::unique_ptr<hoist::Arena> arena;
};

namespace hoist {
namespace {

cuda::Stream StreamOf(hoist_stream stream) {
  return reinterpret_cast<cuda::Stream>(stream);
}

// `call` gets the arena, which is this process's own.
template <typename Call>
int With(const hoist_arena* arena, hoist_error** error, const Call& call) {
  return Guarded(error, [&]() -> Status {
    if (arena == nullptr) return Missing("arena");
    if (arena->arena->forked()) return ForkedStatus();
    return call(*arena->arena);
  });
}

}  // namespace
}  // namespace hoist

using hoist::Arena;
using hoist::Code;
using hoist::Guarded;
using hoist::Missing;
using hoist::Status;
using hoist::With;

int hoist_arena_open(hoist_session* session, const hoist_arena_options* options,
                     hoist_arena** arena, hoist_error** error) {
  return Guarded(error, [&]() -> Status {
    if (session == nullptr) return Missing("session");
    if (options == nullptr) return Missing("options");
    if (arena == nullptr) return Missing("arena");
    hoist_arena_options given = {};
    if (!hoist::ReadSized(options, &given)) {
      return Status(Code::kInvalidArgument,
                    "set struct_size to sizeof(hoist_arena_options)");
    }
    hoist::ArenaOptions with;
    with.device = given.device;
    with.bytes = given.bytes;
    with.deadline = hoist::Milliseconds(given.deadline_ms);
    auto handle = std::make_unique<hoist_arena>();
    auto opened = Arena::Open(session->session, with);
    if (!opened.ok()) return opened.status();
    handle->arena = std::move(opened).value();
    *arena = handle.release();
    return Status();
  });
}

void hoist_arena_close(hoist_arena* arena) {
  // In the child of a fork all of it is the parent's.
  if (arena == nullptr || arena->arena->forked()) return;
  delete arena;
}

int hoist_arena_take(hoist_arena* arena, uint64_t bytes, hoist_stream stream,
                     hoist_arena_block* block, hoist_error** error) {
  return With(arena, error, [&](Arena& of) -> Status {
    if (block == nullptr) return Missing("block");
    auto taken = of.Take(bytes, hoist::StreamOf(stream));
    if (!taken.ok()) return taken.status();
    *block = {taken->address, taken->bytes};
    return Status();
  });
}

int hoist_arena_give(hoist_arena* arena, const void* address,
                     hoist_stream stream, hoist_error** error) {
  return With(arena, error, [&](Arena& of) {
    return of.Give(address, hoist::StreamOf(stream));
  });
}

int hoist_arena_get_stats(const hoist_arena* arena, hoist_arena_stats* stats,
                          hoist_error** error) {
  return With(arena, error, [&](const Arena& of) -> Status {
    if (stats == nullptr) return Missing("stats");
    const Arena::Stats counted = of.stats();
    hoist_arena_stats out = {};
    out.bytes = counted.bytes;
    out.used_bytes = counted.used_bytes;
    out.peak_used_bytes = counted.peak_used_bytes;
    out.largest_free_bytes = counted.largest_free_bytes;
    out.pinned_bytes = counted.pinned_bytes;
    out.blocks = counted.blocks;
    out.takes = counted.takes;
    out.waits = counted.waits;
    return hoist::WriteSized(out, stats);
  });
}
