// The C API's arenas.
#include "client/src/arena/arena.h"

#include "client/src/c_api/handles.h"

struct hoist_arena {
  std::unique_ptr<hoist::Arena> own;
};

using hoist::Arena;
using hoist::Status;
using hoist::With;

int hoist_arena_open(hoist_session* session, const hoist_arena_options* options,
                     hoist_arena** arena, hoist_error** error) {
  return hoist::Guarded(
      error, {{session, "session"}, {options, "options"}, {arena, "arena"}},
      [&]() -> Status {
        hoist_arena_options given = {};
        Status s = hoist::ReadSized(options, "hoist_arena_options", &given);
        if (!s.ok()) return s;
        given.deadline_ms = hoist::AtMostADay(given.deadline_ms);
        return hoist::Hand(arena, Arena::Open(session->session, given));
      });
}

void hoist_arena_close(hoist_arena* arena) { hoist::Free(arena); }

int hoist_arena_take(hoist_arena* arena, uint64_t bytes, hoist_stream stream,
                     hoist_arena_block* block, hoist_error** error) {
  return With(arena, "arena", error, {{block, "block"}},
              [&](Arena& own) -> Status {
                auto taken = own.Take(bytes, hoist::StreamOf(stream));
                if (!taken.ok()) return taken.status();
                *block = {taken->address, taken->bytes};
                return Status();
              });
}

int hoist_arena_give(hoist_arena* arena, const void* address,
                     hoist_stream stream, hoist_error** error) {
  return With(arena, "arena", error, {}, [&](Arena& own) {
    return own.Give(address, hoist::StreamOf(stream));
  });
}

int hoist_arena_get_stats(const hoist_arena* arena, hoist_arena_stats* stats,
                          hoist_error** error) {
  return With(arena, "arena", error, {{stats, "stats"}}, [&](const Arena& own) {
    return hoist::WriteSized(own.stats(), stats);
  });
}
