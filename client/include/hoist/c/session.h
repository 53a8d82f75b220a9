/* hoist_c.h: connections with hoistd, and its devices. */
#ifndef HOIST_C_SESSION_H_
#define HOIST_C_SESSION_H_

#include "hoist/c/base.h"

#ifdef __cplusplus
extern "C" {
#endif

/* Options of hoist_connect. */
typedef struct hoist_connect_options {
  size_t struct_size;
  /* NULL or "": $HOIST_SOCKET; else the socket of this user's own hoistd
   * (`hoistd --user`), if it answers; else /run/hoist/hoistd.sock. */
  const char* socket_path;
  /* Shown by `hoistctl sessions`. NULL: the program's name. */
  const char* client_name;
  /* Maximum bytes leased concurrently per device; 0: no limit. In-place host
   * memory does not count. */
  uint64_t device_budget_bytes;
  /* How long to retry while no daemon listens; 0: one try. */
  uint64_t connect_deadline_ms;
  /* Limit of calls without a deadline of their own. Others get this much beyond
   * their own, for copies, while hoistd shows signs of life: else they end at
   * their own, but not within 5 s. 0: 10 minutes. */
  uint64_t call_deadline_ms;
} hoist_connect_options;

/* `options` may be NULL. UNAVAILABLE: no daemon listens there.
 * PERMISSION_DENIED: this user may not open the socket. */
HOIST_API int hoist_connect(const hoist_connect_options* options,
                            hoist_session** session, hoist_error** error);
/* Sets this thread's patience: its calls return HOIST_DEADLINE_EXCEEDED when
 * hoistd is silent for this long (stopped, or hung), whatever their deadline.
 * 0, the default: calls wait for their deadline. Returns the old value. A
 * plan's stage does not ask hoistd, and has its stage_deadline_ms. */
HOIST_API uint64_t hoist_set_patience(uint64_t milliseconds);
/* Another handle of the same session. The session ends when its last handle is
 * freed, or any is closed. Fails as hoist_session_check does. */
HOIST_API int hoist_session_share(const hoist_session* session,
                                  hoist_session** shared, hoist_error** error);
/* Ends the session and releases all its leases; their addresses must not be
 * used any more. Waiting and later calls return HOIST_FAILED_PRECONDITION. The
 * handle must still be freed. A second close does nothing. */
HOIST_API void hoist_session_close(hoist_session* session);
/* Frees the handle; the last one closes an open session. Leases and models stay
 * valid handles. */
HOIST_API void hoist_session_free(hoist_session* session);
/* HOIST_OK, or why no call can succeed any more: closed, forked, hoistd gone.
 * Sends no message; hoistd's end is noticed at once. */
HOIST_API int hoist_session_check(const hoist_session* session,
                                  hoist_error** error);
/* An eventfd, readable after hoistd has asked the client to set the plans that
 * gave way again (`hoistctl wake`); its reader resets it. It is the session's,
 * which closes it. -1: no descriptor is left. */
HOIST_API int hoist_session_wake_fd(const hoist_session* session);
/* hoistd's number of the session. */
HOIST_API uint64_t hoist_session_id(const hoist_session* session);
/* hoistd's version, "0.1.0". */
HOIST_API const char* hoist_session_daemon_version(
    const hoist_session* session);

/* --- Devices. --- */

/* Kinds of devices. */
enum {
  HOIST_DEVICE_EMULATED = 1, /* Host memory that workers map. */
  HOIST_DEVICE_CUDA = 2      /* A GPU's. */
};

/* Result of hoist_session_device. */
typedef struct hoist_device_info {
  size_t struct_size;
  uint32_t index; /* hoistd's number of it, for requests. */
  int kind;       /* HOIST_DEVICE_*. Emulated: addresses are of host memory. */
  const char* name;
  uint8_t uuid[16]; /* CUDA's; made up for emulated devices. */
  uint64_t pool_bytes;
} hoist_device_info;

/* How many devices hoistd has. */
HOIST_API size_t hoist_session_device_count(const hoist_session* session);
/* The i-th, 0 <= i < count; OUT_OF_RANGE. */
HOIST_API int hoist_session_device(const hoist_session* session, size_t i,
                                   hoist_device_info* info,
                                   hoist_error** error);

#ifdef __cplusplus
}
#endif

#endif /* HOIST_C_SESSION_H_ */
