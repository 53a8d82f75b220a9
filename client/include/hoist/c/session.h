/* hoist_c.h: connections with hoistd, and the devices that it has. */
#ifndef HOIST_C_SESSION_H_
#define HOIST_C_SESSION_H_

#include "hoist/c/base.h"

#ifdef __cplusplus
extern "C" {
#endif

/* Of hoist_connect. */
typedef struct hoist_connect_options {
  size_t struct_size;
  /* NULL or "": $HOIST_SOCKET; else that of this user's own hoistd
   * (`hoistd --user`), if it answers; else /run/hoist/hoistd.sock. */
  const char* socket_path;
  /* Shown by `hoistctl sessions`. NULL: the program's name. */
  const char* client_name;
  /* Bytes this session may have leased at once on a device; 0: no limit. Host
   * memory that is read in place is none. */
  uint64_t device_budget_bytes;
  /* How long to try again while no daemon listens; 0: one try. */
  uint64_t connect_deadline_ms;
  /* How long a call may take that has no deadline of its own; a stage gets this
   * much beyond its own. Guards against a daemon that hangs. 0: 10 minutes. */
  uint64_t call_deadline_ms;
} hoist_connect_options;

/* `options` may be NULL. UNAVAILABLE: nobody listens there. PERMISSION_DENIED:
 * this user may not open the socket. */
HOIST_API int hoist_connect(const hoist_connect_options* options,
                            hoist_session** session, hoist_error** error);
/* From now on, calls of this thread return HOIST_DEADLINE_EXCEEDED where hoistd
 * gives no sign of life for so long (it is stopped, or hangs), whatever their
 * deadline. 0, as at first: they wait for their deadline. Returns what it was.
 * A plan's stage does not ask hoistd, and has its stage_deadline_ms. */
HOIST_API uint64_t hoist_set_patience(uint64_t milliseconds);
/* Another handle of the same session, which then ends with the last of its
 * handles that is freed, or as soon as one of them is closed. Fails as
 * hoist_session_check does. */
HOIST_API int hoist_session_share(const hoist_session* session,
                                  hoist_session** shared, hoist_error** error);
/* Ends the session: all its leases are released, and their addresses must not
 * be used any more. Calls that wait return HOIST_FAILED_PRECONDITION, as later
 * ones do. The handle is still to be freed. Again: nothing happens. */
HOIST_API void hoist_session_close(hoist_session* session);
/* Closes, if that is still to be done and no other handle shares the session.
 * Leases and models stay valid handles. */
HOIST_API void hoist_session_free(hoist_session* session);
/* HOIST_OK, or why no call can succeed any more: closed, forked, hoistd gone.
 * Does not ask hoistd; its end is noticed as it happens. */
HOIST_API int hoist_session_check(const hoist_session* session,
                                  hoist_error** error);
/* hoistd's number of it. */
HOIST_API uint64_t hoist_session_id(const hoist_session* session);
/* hoistd's, "0.1.0". */
HOIST_API const char* hoist_session_daemon_version(
    const hoist_session* session);

/* --- Devices. --- */

/* Kinds of devices. */
enum {
  HOIST_DEVICE_EMULATED = 1, /* Host memory that workers map. */
  HOIST_DEVICE_CUDA = 2      /* A GPU's. */
};

/* Of hoist_session_device. */
typedef struct hoist_device_info {
  size_t struct_size;
  uint32_t index; /* hoistd's number of it, which requests use. */
  int kind;       /* HOIST_DEVICE_EMULATED: addresses are of host memory. */
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
