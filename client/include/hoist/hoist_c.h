/* libhoist's C API: weights that live in hoistd, used from this process.
 *
 *   hoist_session* session = NULL;
 *   hoist_error* error = NULL;
 *   if (hoist_connect(NULL, &session, &error) != HOIST_OK) {
 *     fprintf(stderr, "%s\n", hoist_error_message(error));
 *     hoist_error_free(error);
 *   }
 *
 * Errors:   a call that can fail returns one of gRPC's codes. If it is not
 *           HOIST_OK and `error` is not NULL, *error is set; free it.
 *           Results are written only on HOIST_OK.
 * Threads:  every call is thread-safe, except a handle's own free, which must
 *           be its last use. A waiting stage blocks no other call.
 * Fork:     in the child each session and lease of the parent answers
 *           HOIST_FAILED_PRECONDITION; connect again there. Models are plain
 *           data, and stay usable.
 * Death:    under a keeper (systemd, hoist-keeper), the death or restart of
 *           hoistd ends nothing. Leases and plans keep their addresses and
 *           bytes, and streams continue. Waiting calls are sent again to the
 *           next hoistd, within their own deadlines. Until it is there they
 *           wait as for any answer, and a plan's positions are not ready. A
 *           call that was being answered may have been done. A plan that the
 *           next hoistd cannot resume answers HOIST_ABORTED; make it anew.
 *           Without a keeper, or if the next hoistd can take nothing over
 *           (another GPU, another version of the kept state; `hoistctl status`
 *           says why), each session, lease and plan answers HOIST_UNAVAILABLE,
 *           and waiting calls return it at once. A session that was closed here
 *           answers HOIST_FAILED_PRECONDITION. hoist_session_check tells the
 *           two apart, without a message. Connect again in the same process:
 *           the new session shares nothing with the old one. Old handles can
 *           still be asked and freed, in any order, before or after new ones.
 *           Their mappings of the old hoistd's memory keep the bytes, until the
 *           last handle (session, lease, plan, host image) of that session is
 *           freed. Models are plain data of one hoistd: a session with another
 *           one refuses them (HOIST_FAILED_PRECONDITION); ask it for its own.
 * NULL:     as a handle, it is refused with HOIST_INVALID_ARGUMENT. Calls that
 *           return no code give 0, "" or NULL for it (owner: UINT32_MAX); frees
 *           do nothing.
 * Strings:  UTF-8, NUL-terminated; returned ones live as long as their handle.
 * Structs:  the caller zeroes a struct that begins with `struct_size`, and sets
 *           that to the struct's sizeof, so that structs can grow. */
#ifndef HOIST_HOIST_C_H_
#define HOIST_HOIST_C_H_

#include "hoist/c/arena.h"
#include "hoist/c/attachment.h"
#include "hoist/c/base.h"
#include "hoist/c/copy_permit.h"
#include "hoist/c/fixed_mapping.h"
#include "hoist/c/in_place.h"
#include "hoist/c/model.h"
#include "hoist/c/plan.h"
#include "hoist/c/session.h"
#include "hoist/c/stage.h"

#endif /* HOIST_HOIST_C_H_ */
