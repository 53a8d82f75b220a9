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
 * Threads:  every call is thread-safe, but for a handle's own free, which
 *           must be its last use. A stage that waits holds up nobody.
 * Fork:     in the child each session and lease of the parent answers
 *           HOIST_FAILED_PRECONDITION; connect again there. Models, which are
 *           plain data, stay usable.
 * Death:    where something keeps what outlives hoistd (systemd, hoist-keeper),
 *           a hoistd that dies or is restarted ends nothing: leases and plans
 *           keep their addresses and bytes, streams go on where they stand, and
 *           calls that wait are asked again of the next hoistd, all within
 *           their own deadlines. Until it is there they wait as for any answer,
 *           and a plan's positions are not ready. A call that was being
 *           answered may have been done. A plan that the next hoistd could not
 *           go on with answers HOIST_ABORTED; make it anew.
 *           Where nothing keeps it, or the next hoistd could take over nothing
 *           (another GPU, another version of what was left; `hoistctl status`
 *           says why), each session answers
 *           HOIST_UNAVAILABLE, as its leases and plans do, and calls that wait
 *           return it at once; a session that was closed here answers
 *           HOIST_FAILED_PRECONDITION. hoist_session_check tells the two apart,
 *           and needs no message. Connect again in the same process: the new
 *           session shares nothing with the old one. Old handles stay valid to
 *           ask and to free, in any order, before or after new ones; what they
 *           have mapped of the old hoistd's memory keeps its bytes, and is
 *           unmapped with the last handle (session, lease, plan, host image)
 *           that keeps such a session. Models are plain data, but name what the
 *           old hoistd had: a session with another one refuses them
 *           (HOIST_FAILED_PRECONDITION), and has to be asked for its own.
 * NULL:     as a handle, it is refused with HOIST_INVALID_ARGUMENT; calls that
 *           return no code give 0, "" or NULL for it (owner: UINT32_MAX), and
 *           frees do nothing.
 * Strings:  UTF-8, ended by NUL; those returned live as long as their handle.
 * Structs:  those that have `struct_size` first are filled with zero and then
 *           given sizeof their type by the caller, so that they can grow.
 */
#ifndef HOIST_HOIST_C_H_
#define HOIST_HOIST_C_H_

#include "hoist/c/arena.h"
#include "hoist/c/base.h"
#include "hoist/c/berth.h"
#include "hoist/c/copier.h"
#include "hoist/c/in_place.h"
#include "hoist/c/model.h"
#include "hoist/c/plan.h"
#include "hoist/c/session.h"
#include "hoist/c/stage.h"

#endif /* HOIST_HOIST_C_H_ */
