/* hoist_c.h: host memory that this worker writes to, for its layers'
 * offloads. */
#ifndef HOIST_C_ARENA_H_
#define HOIST_C_ARENA_H_

#include "hoist/c/plan.h"

#ifdef __cplusplus
extern "C" {
#endif

/* Host memory that hoistd leases to this worker alone, and that a device's
 * copies reach: for offloaded activations, say. The worker opens it once, then
 * takes and gives blocks in stream order, without a message or a wait for the
 * GPU.
 *
 *   hoist_arena_open(session, &options, &arena, &error);
 *   for each tensor that a layer offloads:
 *     hoist_arena_take(arena, bytes, out_stream, &block, &error);
 *     ... a copy on `out_stream` into block.address ...
 *     ... a copy on `in_stream` from there, when the layer needs it again ...
 *     hoist_arena_give(arena, block.address, in_stream, &error);
 *
 * Memory:   from host.in_place in hoistd.toml, apart from in-place weights; no
 *           other process has it open. It is zeroed when it is opened, and
 *           counts for its user (quota.device_bytes). hoistd has it back when
 *           the arena is closed or the process dies.
 * Pinned:   from the start where the driver shares its host memory. Elsewhere
 *           this process pins it in the background, and copies are slower until
 *           then (hoist_arena_stats.pinned_bytes).
 * Streams:  a stream that takes a block waits, on the GPU, for the block's last
 *           use on another stream. An emulated device ignores streams: a use is
 *           over when the block is given.
 * Captures: a stream that is being captured into a CUDA graph is refused
 *           (HOIST_FAILED_PRECONDITION): take before the capture.
 * Threads:  any; a call takes one uncontended lock.
 * Death:    if hoistd dies, or its successor does not resume the session, the
 *           memory stays this worker's until it is closed. Takes and gives go
 *           on; new arenas are refused. If an admin ended the session
 *           (`hoistctl end`), or it was closed here, takes are refused: give
 *           the taken blocks, and close.
 * Fork:     in the child every call answers HOIST_FAILED_PRECONDITION, and the
 *           memory is not mapped. */
typedef struct hoist_arena hoist_arena;

/* Options of hoist_arena_open. */
typedef struct hoist_arena_options {
  size_t struct_size;
  uint32_t device; /* Its copies reach the arena. */
  uint64_t bytes;  /* Rounded up to 2 MiB. */
  /* To wait for room; 0: only room that is free now. The allocation itself
   * takes further time. */
  uint64_t deadline_ms;
} hoist_arena_options;

/* RESOURCE_EXHAUSTED: no room by the deadline; the message says how much would
 * be enough. UNIMPLEMENTED: this hoistd has no memory for arenas.
 * INVALID_ARGUMENT: zero bytes, or no such device. */
HOIST_API int hoist_arena_open(hoist_session* session,
                               const hoist_arena_options* options,
                               hoist_arena** arena, hoist_error** error);
/* Gives the memory back, after the last uses of given blocks. The caller no
 * longer uses the others. NULL is allowed. */
HOIST_API void hoist_arena_close(hoist_arena* arena);

/* A part of an arena. */
typedef struct hoist_arena_block {
  void* address;  /* For this process and for the device. */
  uint64_t bytes; /* No less than was asked for. */
} hoist_arena_block;

/* Later work on `stream` may use the block, until it is given. Blocks are
 * aligned to 512 bytes. RESOURCE_EXHAUSTED: no contiguous room; the message
 * says how much is free. */
HOIST_API int hoist_arena_take(hoist_arena* arena, uint64_t bytes,
                               hoist_stream stream, hoist_arena_block* block,
                               hoist_error** error);
/* Earlier work on `stream` is the last use of the block at `address`.
 * INVALID_ARGUMENT: no block begins there. */
HOIST_API int hoist_arena_give(hoist_arena* arena, const void* address,
                               hoist_stream stream, hoist_error** error);

/* Result of hoist_arena_get_stats. */
typedef struct hoist_arena_stats {
  size_t struct_size;
  uint64_t bytes;
  uint64_t used_bytes; /* Of taken blocks. */
  uint64_t peak_used_bytes;
  uint64_t largest_free_bytes;
  uint64_t pinned_bytes;
  uint64_t blocks; /* Taken now. */
  uint64_t takes;  /* So far. */
  uint64_t waits;  /* Takes that made a stream wait for another. */
} hoist_arena_stats;

/* Current use, and totals so far. */
HOIST_API int hoist_arena_get_stats(const hoist_arena* arena,
                                    hoist_arena_stats* stats,
                                    hoist_error** error);

#ifdef __cplusplus
}
#endif

#endif /* HOIST_C_ARENA_H_ */
