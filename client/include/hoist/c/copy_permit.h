/* hoist_c.h: a worker's own copies, in turns on a device's link. */
#ifndef HOIST_C_COPY_PERMIT_H_
#define HOIST_C_COPY_PERMIT_H_

#include "hoist/c/plan.h"

#ifdef __cplusplus
extern "C" {
#endif

/* A worker's own copies to a device (of activations, say) would take half of
 * the device's link from plans, whatever the priorities. Under a copy permit
 * they take turns that hoistd grants, and are counted (`hoistctl status`).
 *
 *   hoist_copy_permit_to_device(permit, device, host, bytes, stream, &error);
 *
 * enqueues the copy on `stream`, in pieces; each waits there for its grant.
 * Around a copy by other code, of HOIST_COPY_PERMIT_PIECE_BYTES at most:
 *
 *   hoist_copy_permit_begin(permit, bytes, stream, &error);
 *   ... copies of so many bytes to the device, on `stream` ...
 *   hoist_copy_permit_end(permit, bytes, stream, &error);
 *
 * Copies from the device wait for nothing, since the link is full duplex; they
 * are counted when they are enqueued.
 *
 * No call sends a message or waits for the GPU; the first one after an idle
 * time wakes hoistd. On an emulated device the caller's thread is the stream:
 * calls return when the bytes are copied or, for begin, granted.
 *
 * Streams:  any, of the device's primary context; a stream's handle must stay
 *           valid until the permit is freed. Copies to the device on several
 *           streams run in the order of the calls: each waits for all earlier
 *           work on the previous copy's stream. Streams that run concurrently
 *           need a permit each; a session may have 8.
 * Graphs:   a stream under capture is refused with FAILED_PRECONDITION: a graph
 *           would repeat an old request. Copy before or after its launch.
 * Death:    if hoistd, the session or the device ends, or hoistd is silent for
 *           5 s, waits are let through and copies run without grants; no call
 *           fails. If the session resumes, grants do too.
 * Fork:     in the child every call answers HOIST_FAILED_PRECONDITION. */
typedef struct hoist_copy_permit hoist_copy_permit;

/* The maximum of one hoist_copy_permit_begin: 32 MiB. */
#define HOIST_COPY_PERMIT_PIECE_BYTES 33554432u

/* Options of hoist_copy_permit_open. */
typedef struct hoist_copy_permit_options {
  size_t struct_size;
  uint32_t device;
  /* Share of the link, beside the device's plans and other permits. */
  uint32_t weight;               /* 1 to 1,000; 0: 1. */
  int32_t priority;              /* -10 to 10; higher goes first. */
  uint64_t max_bytes_per_second; /* 0: no cap. */
} hoist_copy_permit_options;

/* `options` may be NULL: device 0, weight 1. RESOURCE_EXHAUSTED: the session or
 * the user has too many. UNIMPLEMENTED: this hoistd grants nothing. NOT_FOUND:
 * it has no such device. A permit keeps its session alive, unless the session
 * is closed. */
HOIST_API int hoist_copy_permit_open(hoist_session* session,
                                     const hoist_copy_permit_options* options,
                                     hoist_copy_permit** permit,
                                     hoist_error** error);

/* Enqueues on `stream` a copy of `bytes` from the host's `from` to the device's
 * `to`. Both must stay valid and unchanged until it is done. From host memory
 * that is not pinned the driver copies within the call, which waits for the
 * grant. */
HOIST_API int hoist_copy_permit_to_device(hoist_copy_permit* permit, void* to,
                                          const void* from, uint64_t bytes,
                                          hoist_stream stream,
                                          hoist_error** error);
/* Copies from the device's `from` to the host's `to`. */
HOIST_API int hoist_copy_permit_to_host(hoist_copy_permit* permit, void* to,
                                        const void* from, uint64_t bytes,
                                        hoist_stream stream,
                                        hoist_error** error);

/* Later work on `stream` may copy `bytes` to the device. INVALID_ARGUMENT: more
 * than HOIST_COPY_PERMIT_PIECE_BYTES. FAILED_PRECONDITION: more than 1 GiB
 * would be begun and not ended. */
HOIST_API int hoist_copy_permit_begin(hoist_copy_permit* permit, uint64_t bytes,
                                      hoist_stream stream, hoist_error** error);
/* Earlier work on `stream` copies `bytes` of those begun. Others may wait until
 * this call. FAILED_PRECONDITION: fewer were begun. */
HOIST_API int hoist_copy_permit_end(hoist_copy_permit* permit, uint64_t bytes,
                                    hoist_stream stream, hoist_error** error);
/* Counts bytes that other code copies from the device. */
HOIST_API int hoist_copy_permit_add_to_host(hoist_copy_permit* permit,
                                            uint64_t bytes,
                                            hoist_error** error);

/* Result of hoist_copy_permit_get_stats. */
typedef struct hoist_copy_permit_stats {
  size_t struct_size;
  /* Enqueued to the device, with a grant and without. */
  uint64_t granted_bytes;
  uint64_t ungranted_bytes;
  uint64_t to_host_bytes;
  uint64_t wake_ups; /* Of hoistd; each is a system call. */
  int grants;        /* 1: copies need grants now. */
} hoist_copy_permit_stats;

/* A snapshot of the permit's counts so far. */
HOIST_API int hoist_copy_permit_get_stats(const hoist_copy_permit* permit,
                                          hoist_copy_permit_stats* stats,
                                          hoist_error** error);

/* Lets ungranted copies through, and waits for the GPU if there are any. NULL
 * is allowed. */
HOIST_API void hoist_copy_permit_free(hoist_copy_permit* permit);

#ifdef __cplusplus
}
#endif

#endif /* HOIST_C_COPY_PERMIT_H_ */
