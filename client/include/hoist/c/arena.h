/* hoist_c.h: host memory that this worker writes to, for what its layers put
 * aside. */
#ifndef HOIST_C_ARENA_H_
#define HOIST_C_ARENA_H_

#include "hoist/c/plan.h"

#ifdef __cplusplus
extern "C" {
#endif

/* Host memory that hoistd leases to this worker alone, and that the copies of a
 * device reach: for activations that are offloaded, say. It is opened once, and
 * blocks of it are taken and given in the order of streams, without a message
 * and without waiting for a GPU.
 *
 *   hoist_arena_open(session, &options, &arena, &error);
 *   for each tensor of a layer that is put aside:
 *     hoist_arena_take(arena, bytes, out_stream, &block, &error);
 *     ... a copy on `out_stream` into block.address ...
 *     ... a copy on `in_stream` from there, when the layer needs it again ...
 *     hoist_arena_give(arena, block.address, in_stream, &error);
 *
 * Memory:   of host.in_place in hoistd.toml, beside what is read in place, and
 *           never part of it: no other process has it open. It is zeroed when
 *           it is opened. It counts for its user (quota.device_bytes), and is
 *           back when the arena is closed or the process dies.
 * Pinned:   as it comes, where the driver shares its host memory; else this
 *           process pins it in the background, and copies are slower until
 *           then (hoist_arena_stats.pinned_bytes).
 * Streams:  who takes a block that was last used on another stream has its own
 *           stream wait for that use, on the GPU. On an emulated device streams
 *           mean nothing: a use is over when the block is given.
 * Captures: a stream that is being captured into a CUDA graph is refused
 *           (HOIST_FAILED_PRECONDITION): take before the capture.
 * Threads:  any; a call takes one uncontended lock.
 * Death:    if hoistd dies, or is replaced by one that does not go on with the
 *           session, the memory stays this worker's until it is closed, and
 *           blocks are taken and given as before; new arenas are refused. If
 *           the session was told to end (`hoistctl end`), or was closed here,
 *           takes are refused: give what is taken, and close.
 * Fork:     in the child every call answers HOIST_FAILED_PRECONDITION, and the
 *           memory is not mapped. */
typedef struct hoist_arena hoist_arena;

/* Of hoist_arena_open. */
typedef struct hoist_arena_options {
  size_t struct_size;
  uint32_t device; /* Whose copies reach it. */
  uint64_t bytes;  /* Rounded up to 2 MiB. */
  /* For hoistd to find room; 0: only what is there. To make memory takes time
   * beyond that. */
  uint64_t deadline_ms;
} hoist_arena_options;

/* RESOURCE_EXHAUSTED: there is no room for it by the deadline; the message says
 * how much would do. UNIMPLEMENTED: this hoistd has no memory for arenas.
 * INVALID_ARGUMENT: no bytes are asked for, or there is no such device. */
HOIST_API int hoist_arena_open(hoist_session* session,
                               const hoist_arena_options* options,
                               hoist_arena** arena, hoist_error** error);
/* Gives the memory back: waits for the last uses of blocks that were given;
 * nothing uses the others any more. NULL is allowed. */
HOIST_API void hoist_arena_close(hoist_arena* arena);

/* A part of an arena. */
typedef struct hoist_arena_block {
  void* address;  /* For this process and for the device. */
  uint64_t bytes; /* No less than was asked for. */
} hoist_arena_block;

/* What is put on `stream` from now on may use the block, until it is given.
 * Places are multiples of 512 bytes. RESOURCE_EXHAUSTED: there is no room in
 * one piece; the message says how much is free. */
HOIST_API int hoist_arena_take(hoist_arena* arena, uint64_t bytes,
                               hoist_stream stream, hoist_arena_block* block,
                               hoist_error** error);
/* What was put on `stream` before is the last use of the block that begins at
 * `address`. INVALID_ARGUMENT: none does. */
HOIST_API int hoist_arena_give(hoist_arena* arena, const void* address,
                               hoist_stream stream, hoist_error** error);

/* Of hoist_arena_get_stats. */
typedef struct hoist_arena_stats {
  size_t struct_size;
  uint64_t bytes;
  uint64_t used_bytes; /* Of blocks that are taken. */
  uint64_t peak_used_bytes;
  uint64_t largest_free_bytes;
  uint64_t pinned_bytes;
  uint64_t blocks; /* That are taken. */
  uint64_t takes;  /* So far. */
  uint64_t waits;  /* Of those, that had a stream wait for another. */
} hoist_arena_stats;

/* What is taken now, and was so far. */
HOIST_API int hoist_arena_get_stats(const hoist_arena* arena,
                                    hoist_arena_stats* stats,
                                    hoist_error** error);

#ifdef __cplusplus
}
#endif

#endif /* HOIST_C_ARENA_H_ */
