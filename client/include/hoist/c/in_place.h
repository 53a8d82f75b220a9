/* hoist_c.h: tensors that are read where they lie. */
#ifndef HOIST_C_IN_PLACE_H_
#define HOIST_C_IN_PLACE_H_

#include "hoist/c/plan.h"

#ifdef __cplusplus
extern "C" {
#endif

/* A tensor of which a pass reads a part (a mixture's experts, an embedding)
 * need not be copied to the device as a whole. Here it lies in pieces, a group
 * of the model each, that are mapped side by side at one address for good: hot
 * ones are in device memory, cold ones in host memory that the device's kernels
 * read over the link. Kernels know nothing of it, and only what they touch
 * moves.
 *
 *   hoist_in_place_create(session, model, tensors, count, &options, &in_place,
 *                         &error);
 *   hoist_in_place_address(in_place, 0, &data, &error);
 *   for each pass:
 *     hoist_in_place_begin(in_place, stream, &error);
 *     ... kernels on `stream` that read `data` ...
 *     hoist_in_place_end(in_place, &error);
 *
 * Pieces:   a piece's image is a multiple of 2 MiB, which a device maps by
 *           itself, but for a tensor's last; it begins with the tensor's bytes.
 *           Cold pieces stay leased on the host (host.in_place in hoistd.toml).
 * Hot ones: those that are touched most, as many as the budget holds. A thread
 *           of the library reads how often the units of each tensor were
 *           touched, has hoistd copy the hottest to the device in what others
 *           leave of the link, and maps them in the place of the cold ones, and
 *           back, between passes. Workers of one user share them.
 * Passes:   pieces change places where a pass begins, if some are waiting to:
 *           for a millisecond, or a fifth of the time at most. Whatever reads
 *           the tensors is on the pass's stream, or in order with it. Threads
 *           may launch passes at once, on whichever streams; pieces then stay
 *           until they do not. begin and end may be captured into a CUDA graph,
 *           each launch of which is a pass then, and needs no call: its
 *           launches are in order with each other and with other passes, and
 *           none is between a begin and its end. Without passes pieces change
 *           places in hoist_in_place_advance alone.
 * Results:  the same bytes, wherever a piece lies.
 * Emulated: the same, over pages of host memory.
 * Death:    as for leases: what is mapped stays, and hoistd's successor goes
 *           on.
 * Fork:     in the child every call answers HOIST_FAILED_PRECONDITION. */
typedef struct hoist_in_place hoist_in_place;

/* A tensor to read so, and what of it is counted. */
typedef struct hoist_in_place_tensor {
  size_t struct_size;
  const uint32_t* groups; /* The pieces, in the tensor's order. */
  size_t group_count;
  /* Equal parts of the tensor that are touched or not (rows, experts), in
   * order; 0: 1. */
  uint32_t units;
  /* Of the units' counts in hoist_in_place_options.counts. Tensors whose units
   * are touched together may share them. */
  uint64_t first_count;
} hoist_in_place_tensor;

/* Of hoist_in_place_create. */
typedef struct hoist_in_place_options {
  size_t struct_size;
  uint32_t device;
  uint64_t hot_budget_bytes; /* Of device memory; 0: nothing is hot. */
  uint64_t deadline_ms;      /* For the cold pieces to come; 0: refuse at once
                              * where there is no room. */
  /* On a GPU in its memory, else in this process's: uint32_t, added to by
   * whoever touches units, and by nobody else. They may begin with any number,
   * and wrap. They outlive the object. NULL: hoist_in_place_touch tells. */
  const void* counts;
  uint64_t count_length;
} hoist_in_place_options;

/* HOIST_OK: this session's hoistd has host memory that devices read in place.
 * UNIMPLEMENTED: it has not, and why. */
HOIST_API int hoist_session_has_in_place(const hoist_session* session,
                                         hoist_error** error);
/* The model's groups are staged on the host, each in memory of its own.
 * UNIMPLEMENTED: this hoistd, or its GPUs, have nothing that is read in place;
 * the message says why: stage the groups instead. INVALID_ARGUMENT: a piece
 * that is no multiple of 2 MiB. RESOURCE_EXHAUSTED: host.in_place is too small.
 */
HOIST_API int hoist_in_place_create(hoist_session* session,
                                    const hoist_model* model,
                                    const hoist_in_place_tensor* tensors,
                                    size_t tensor_count,
                                    const hoist_in_place_options* options,
                                    hoist_in_place** in_place,
                                    hoist_error** error);
/* Waits for nothing: what reads the tensors has ended. NULL is allowed. */
HOIST_API void hoist_in_place_free(hoist_in_place* in_place);

/* Of the tensor's first byte, for reading: it is the device's, and stays.
 * OUT_OF_RANGE: there is no such tensor. */
HOIST_API int hoist_in_place_address(const hoist_in_place* in_place,
                                     size_t tensor, const void** data,
                                     hoist_error** error);

/* This thread launches a pass on `stream` between the two. `begin` waits for
 * the streams that passes were put on, only if pieces are to change places, and
 * not at all while it is captured. Until `end` pieces stay where they are,
 * whatever a graph's launch would let them do: the driver looks addresses up
 * when it is asked for copies and some kernels (Triton's). `end` waits for
 * nothing on a GPU; on an emulated device it takes as long as its link would
 * (device.emulated.link) for what was touched in cold pieces. A pass that is
 * cut short ends with the thread's next one, or with the thread. */
HOIST_API int hoist_in_place_begin(hoist_in_place* in_place,
                                   hoist_stream stream, hoist_error** error);
/* The end of this thread's pass; see hoist_in_place_begin. */
HOIST_API int hoist_in_place_end(hoist_in_place* in_place, hoist_error** error);

/* These units of a tensor were touched, each so often since the last call.
 * OUT_OF_RANGE: there is no such tensor, or unit. */
HOIST_API int hoist_in_place_touch(hoist_in_place* in_place, size_t tensor,
                                   const uint32_t* units,
                                   const uint32_t* counts, size_t length,
                                   hoist_error** error);
/* Nothing reads the tensors while this runs: what is to change places does.
 * `wait`: also what is still being copied to the device; for a minute at most,
 * DEADLINE_EXCEEDED. Between another thread's begin and end nothing moves. */
HOIST_API int hoist_in_place_advance(hoist_in_place* in_place, int wait,
                                     hoist_error** error);
/* How many pieces would change places in hoist_in_place_advance now. Cheap:
 * whoever has no passes asks before it reads. */
HOIST_API uint32_t hoist_in_place_pending(const hoist_in_place* in_place);
/* From now on; what is too much leaves the device between passes. */
HOIST_API int hoist_in_place_set_budget(hoist_in_place* in_place,
                                        uint64_t hot_budget_bytes,
                                        hoist_error** error);
/* HOIST_OK while what was computed with the tensors may be trusted. */
HOIST_API int hoist_in_place_check(const hoist_in_place* in_place,
                                   hoist_error** error);

/* Of hoist_in_place_get_stats. */
typedef struct hoist_in_place_stats {
  size_t struct_size;
  uint64_t bytes; /* Of all tensors. */
  uint64_t hot_budget_bytes;
  uint64_t hot_bytes; /* Of device memory. */
  uint32_t piece_count;
  uint32_t hot_piece_count;
  uint64_t moves; /* Pieces that became hot, or cold. */
  /* Bytes of touched units, by where they lay when it was counted. */
  uint64_t touched_hot_bytes;
  uint64_t touched_cold_bytes;
} hoist_in_place_stats;

/* What is hot now, and what was touched so far. */
HOIST_API int hoist_in_place_get_stats(const hoist_in_place* in_place,
                                       hoist_in_place_stats* stats,
                                       hoist_error** error);

#ifdef __cplusplus
}
#endif

#endif /* HOIST_C_IN_PLACE_H_ */
