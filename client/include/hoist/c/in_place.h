/* hoist_c.h: zero-copy tensors: kernels read them in place. */
#ifndef HOIST_C_IN_PLACE_H_
#define HOIST_C_IN_PLACE_H_

#include "hoist/c/plan.h"

#ifdef __cplusplus
extern "C" {
#endif

/* For tensors of which a pass reads a part (a mixture's experts, an embedding):
 * they need not be copied to the device as a whole. A tensor consists of
 * pieces, each a group of the model, mapped side by side at one constant
 * address. Hot pieces are in device memory. Cold ones are in host memory, which
 * kernels read over the link: they need no change, and only touched bytes move.
 *
 *   hoist_in_place_create(session, model, tensors, count, &options, &in_place,
 *                         &error);
 *   hoist_in_place_address(in_place, 0, &data, &error);
 *   for each pass:
 *     hoist_in_place_begin(in_place, stream, &error);
 *     ... kernels on `stream` that read `data` ...
 *     hoist_in_place_end(in_place, &error);
 *
 * Pieces:   a piece's image is a multiple of 2 MiB, a device's unit of mapping,
 *           and full of tensors, without gaps; a tensor's last piece may end
 *           anywhere. Cold pieces stay leased on the host (host.in_place in
 *           hoistd.toml).
 * Hot ones: the pieces that the last passes read most, per byte, up to the
 *           budget. A library thread reads which of the tensors' units were
 *           touched. hoistd copies the hottest to the device with the link's
 *           unused bandwidth. Between passes the thread maps them over the cold
 *           ones, and back. A hot piece stays until another was read more by
 *           some reads of a whole piece: what the exchange costs. Workers of
 *           one user share them.
 * Passes:   pending pieces are remapped where a pass begins, for a millisecond
 *           or a fifth of the time at most. All reads of the tensors are on the
 *           pass's stream, or in order with it. Threads may launch passes
 *           concurrently, on any streams; pieces stay until no passes overlap.
 *           A CUDA graph may capture begin and end. Each launch is then a pass,
 *           and needs no call; launches are in order with each other and with
 *           other passes, and none is between a begin and its end. Without
 *           passes only hoist_in_place_advance remaps pieces.
 * Results:  the same bytes, hot or cold.
 * Emulated: the same, over pages of host memory.
 * Death:    as for leases: mapped pieces stay, and hoistd's successor resumes.
 * Fork:     in the child every call answers HOIST_FAILED_PRECONDITION. */
typedef struct hoist_in_place hoist_in_place;

/* A tensor to read in place, and its counted units. */
typedef struct hoist_in_place_tensor {
  size_t struct_size;
  const uint32_t* groups; /* The pieces, in the tensor's order. */
  size_t group_count;
  /* Equal parts of the tensor (rows, experts), each touched as a whole, in
   * order; 0: 1. */
  uint32_t units;
  /* Index of the units' first count in hoist_in_place_options.counts. Tensors
   * whose units are touched together may share counts. */
  uint64_t first_count;
  uint64_t bytes; /* That the pieces must have together; 0: any number. */
  /* Memory of the device behind the last piece, at its end rounded up to 2 MiB,
   * which the caller's kernels may write: copies of units that are cold. Bytes,
   * a multiple of 2 MiB; 0: none. Tensors with equal numbers have the same
   * memory. It is part of the hot budget, and hoistd knows nothing of it. While
   * the budget is smaller, it is given back between passes, unless one was
   * captured. */
  uint64_t scratch_bytes;
  uint32_t scratch;
} hoist_in_place_tensor;

/* Options of hoist_in_place_create. */
typedef struct hoist_in_place_options {
  size_t struct_size;
  uint32_t device;
  uint64_t hot_budget_bytes; /* Of device memory; 0: nothing is hot. */
  uint64_t deadline_ms;      /* For the cold pieces to come; 0: refuse at once
                              * where there is no room. */
  /* uint32_t each, in the GPU's memory, or in this process's on other devices.
   * Only code that touches units adds to them. They may start at any number,
   * and wrap. They outlive the object. NULL: counts come by
   * hoist_in_place_touch. */
  const void* counts;
  uint64_t count_length;
  /* A byte for each count, in host memory, written as pieces move: 0 if all
   * bytes of the units with this count are hot, or if the scratch was given
   * back, else 1. It outlives the object.
   * NULL: not wanted. */
  uint8_t* cold;
} hoist_in_place_options;

/* HOIST_OK: this session's hoistd has host memory that devices read in place.
 * UNIMPLEMENTED: it has none; the message says why. */
HOIST_API int hoist_session_has_in_place(const hoist_session* session,
                                         hoist_error** error);
/* Stages the tensors' groups on the host, each in memory of its own.
 * UNIMPLEMENTED: this hoistd or its GPUs cannot read in place; the message says
 * why: stage the groups instead. INVALID_ARGUMENT: a piece is no multiple of 2
 * MiB, or not full, or together they have other bytes than the tensor.
 * RESOURCE_EXHAUSTED: host.in_place is too small. */
HOIST_API int hoist_in_place_create(hoist_session* session,
                                    const hoist_model* model,
                                    const hoist_in_place_tensor* tensors,
                                    size_t tensor_count,
                                    const hoist_in_place_options* options,
                                    hoist_in_place** in_place,
                                    hoist_error** error);
/* Does not wait: all reads of the tensors must have ended. NULL is allowed. */
HOIST_API void hoist_in_place_free(hoist_in_place* in_place);

/* The device address of the tensor's first byte, constant and read-only.
 * OUT_OF_RANGE: no such tensor. */
HOIST_API int hoist_in_place_address(const hoist_in_place* in_place,
                                     size_t tensor, const void** data,
                                     hoist_error** error);

/* Between begin and end this thread launches a pass on `stream`. `begin` waits
 * for the streams of earlier passes only if pieces are to be remapped, and
 * never during capture. Until `end` no piece is remapped, even if a graph's
 * launch would allow it: the driver resolves addresses when copies and some
 * kernels (Triton's) are enqueued. `end` does not wait on a GPU. On an emulated
 * device it takes its link's time (device.emulated.link) for the bytes touched
 * in cold pieces. An unfinished pass ends with the thread's next one, or with
 * the thread. */
HOIST_API int hoist_in_place_begin(hoist_in_place* in_place,
                                   hoist_stream stream, hoist_error** error);
/* Ends this thread's pass; see hoist_in_place_begin. */
HOIST_API int hoist_in_place_end(hoist_in_place* in_place, hoist_error** error);

/* Reports a pass's touches: units[i] was touched counts[i] times. Call it for
 * each pass: however large the counts, the pass has read each unit once.
 * OUT_OF_RANGE: no such tensor, or unit. */
HOIST_API int hoist_in_place_touch(hoist_in_place* in_place, size_t tensor,
                                   const uint32_t* units,
                                   const uint32_t* counts, size_t length,
                                   hoist_error** error);
/* Remaps pending pieces; nothing may read the tensors meanwhile. `wait`: also
 * those still being copied to the device, for a minute at most
 * (DEADLINE_EXCEEDED). Between another thread's begin and end nothing is
 * remapped. */
HOIST_API int hoist_in_place_advance(hoist_in_place* in_place, int wait,
                                     hoist_error** error);
/* How many pieces hoist_in_place_advance would remap now. Cheap enough to ask
 * before each read, where there are no passes. */
HOIST_API uint32_t hoist_in_place_pending(const hoist_in_place* in_place);
/* Sets the hot budget; excess pieces leave the device between passes. */
HOIST_API int hoist_in_place_set_budget(hoist_in_place* in_place,
                                        uint64_t hot_budget_bytes,
                                        hoist_error** error);
/* HOIST_OK while results computed with the tensors are valid. */
HOIST_API int hoist_in_place_check(const hoist_in_place* in_place,
                                   hoist_error** error);
/* HOIST_OK while hoistd gives the device memory that is asked for within the
 * budget. Otherwise its last refusal, mostly RESOURCE_EXHAUSTED with what would
 * be enough: the pieces stay cold, and are asked for again every 2 s. */
HOIST_API int hoist_in_place_check_hot(const hoist_in_place* in_place,
                                       hoist_error** error);

/* Result of hoist_in_place_get_stats. */
typedef struct hoist_in_place_stats {
  size_t struct_size;
  uint64_t bytes; /* Of all tensors. */
  uint64_t hot_budget_bytes;
  uint64_t hot_bytes; /* Of device memory. */
  uint32_t piece_count;
  uint32_t hot_piece_count;
  uint64_t moves; /* Pieces that became hot or cold. */
  /* Bytes of touched units, by their place when they were counted. */
  uint64_t touched_hot_bytes;
  uint64_t touched_cold_bytes;
} hoist_in_place_stats;

/* Hot pieces now, and touches so far. */
HOIST_API int hoist_in_place_get_stats(const hoist_in_place* in_place,
                                       hoist_in_place_stats* stats,
                                       hoist_error** error);

#ifdef __cplusplus
}
#endif

#endif /* HOIST_C_IN_PLACE_H_ */
