/* hoist_c.h: copies that a worker makes itself, in turns of a device's link. */
#ifndef HOIST_C_COPIER_H_
#define HOIST_C_COPIER_H_

#include "hoist/c/plan.h"

#ifdef __cplusplus
extern "C" {
#endif

/* Bytes of the worker's own (activations, say) that it brings to a device by
 * itself would take half of the device's link from plans, whatever anybody's
 * priority. Under a copier they take the turns that hoistd grants them, and are
 * counted (`hoistctl status`).
 *
 *   hoist_copier_to_device(copier, device, host, bytes, stream, &error);
 *
 * puts the copy on `stream`, in pieces; each waits there for its grant. Or
 * around a copy of another's making, of HOIST_COPIER_PIECE_BYTES at most:
 *
 *   hoist_copier_begin(copier, bytes, stream, &error);
 *   ... copies of so many bytes to the device, on `stream` ...
 *   hoist_copier_end(copier, bytes, stream, &error);
 *
 * Copies from the device wait for nothing, since the link goes both ways at
 * once; they are counted as they are put on their stream.
 *
 * No call sends a message, nor waits for the GPU; once in an idle while one
 * wakes hoistd. On an emulated device the caller's thread is the stream: calls
 * return when the bytes are copied or, of begin, granted.
 *
 * Streams:  any, of the device's primary context; a handle that was given stays
 *           valid until the copier is freed. Copies to the device on several
 *           streams are put in one order, that of the calls: each waits for all
 *           that was on the stream of the one before it. Streams that are to
 *           run at the same time need a copier each, of which a session may
 *           have 8.
 * Graphs:   a stream that is being captured is refused with
 *           FAILED_PRECONDITION: a graph would ask for bytes of long ago again.
 *           Copy before or after its launch.
 * Death:    if hoistd, the session or the device ends, or hoistd is silent for
 *           5 s, waits are let through, and copies are made ungranted; no call
 *           fails for that. Where the session goes on, so do grants, by
 *           themselves.
 * Fork:     in the child every call answers HOIST_FAILED_PRECONDITION. */
typedef struct hoist_copier hoist_copier;

/* The most that one hoist_copier_begin may be for; 32 MiB. */
#define HOIST_COPIER_PIECE_BYTES 33554432u

/* Of hoist_copier_open. */
typedef struct hoist_copier_options {
  size_t struct_size;
  uint32_t device;
  /* How the link is shared with plans and other copiers of the device. */
  uint32_t weight;               /* 1 to 1,000; 0: 1. */
  int32_t priority;              /* -10 to 10; higher goes first. */
  uint64_t max_bytes_per_second; /* 0: no cap. */
} hoist_copier_options;

/* `options` may be NULL: device 0, weight 1. RESOURCE_EXHAUSTED: the session or
 * the user has too many. UNIMPLEMENTED: this hoistd grants nothing. NOT_FOUND:
 * it has no such device. The session lives on while one of its copiers does,
 * unless it is closed. */
HOIST_API int hoist_copier_open(hoist_session* session,
                                const hoist_copier_options* options,
                                hoist_copier** copier, hoist_error** error);

/* Copies `bytes` from the host's `from` to the device's `to`, behind what is on
 * `stream`. Both stay as they are until the stream has come so far. Host memory
 * is pinned, or the driver copies it within the call, which then waits for its
 * grant. */
HOIST_API int hoist_copier_to_device(hoist_copier* copier, void* to,
                                     const void* from, uint64_t bytes,
                                     hoist_stream stream, hoist_error** error);
/* The other way. */
HOIST_API int hoist_copier_to_host(hoist_copier* copier, void* to,
                                   const void* from, uint64_t bytes,
                                   hoist_stream stream, hoist_error** error);

/* What is put on `stream` from now on may copy so many bytes to the device.
 * INVALID_ARGUMENT: more than HOIST_COPIER_PIECE_BYTES. FAILED_PRECONDITION:
 * with it, more than 1 GiB would have begun and not ended. */
HOIST_API int hoist_copier_begin(hoist_copier* copier, uint64_t bytes,
                                 hoist_stream stream, hoist_error** error);
/* So many bytes that were begun are copied by what is on `stream` by now. Until
 * then others may wait for them. FAILED_PRECONDITION: fewer were begun. */
HOIST_API int hoist_copier_end(hoist_copier* copier, uint64_t bytes,
                               hoist_stream stream, hoist_error** error);
/* Counts bytes that another's copy brings from the device. */
HOIST_API int hoist_copier_add_to_host(hoist_copier* copier, uint64_t bytes,
                                       hoist_error** error);

/* Of hoist_copier_get_stats. */
typedef struct hoist_copier_stats {
  size_t struct_size;
  /* Put on streams, to the device, to be granted there; and not to be. */
  uint64_t granted_bytes;
  uint64_t ungranted_bytes;
  uint64_t to_host_bytes;
  uint64_t wake_ups; /* Of hoistd; each is a system call. */
  int grants;        /* 1: copies are granted now. */
} hoist_copier_stats;

/* A snapshot of what the copier has done so far. */
HOIST_API int hoist_copier_get_stats(const hoist_copier* copier,
                                     hoist_copier_stats* stats,
                                     hoist_error** error);

/* Waits for the GPU if it has copies yet to be granted, which are let through.
 * NULL is allowed. */
HOIST_API void hoist_copier_free(hoist_copier* copier);

#ifdef __cplusplus
}
#endif

#endif /* HOIST_C_COPIER_H_ */
