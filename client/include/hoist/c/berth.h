/* hoist_c.h: addresses that groups are bound to, and may leave. */
#ifndef HOIST_C_BERTH_H_
#define HOIST_C_BERTH_H_

#include "hoist/c/model.h"

#ifdef __cplusplus
extern "C" {
#endif

/* Addresses of this process for some groups of a model. While the berth is
 * full, each group's image can be read at its own; while it is empty, nothing
 * is mapped there, and nothing leased. So an engine that sleeps gives all of
 * its weights back, also its session, and when it wakes up its pointers and
 * CUDA graphs are right.
 *
 *   hoist_berth_create(session, model, groups, count, 0, &berth, &error);
 *   hoist_berth_address(berth, 0, &data, &error);
 *   hoist_berth_fill(berth, session, model, groups, count, 30000, &error);
 *   ... kernels that read `data` ...
 *   hoist_berth_empty(berth, &error);    nothing reads any more
 *   hoist_session_free(session);         hours later: another one, perhaps of
 *   hoist_berth_fill(berth, session2, model2, groups2, ...);   another hoistd
 *
 * Memory:   each image lies in device memory of its own, a multiple of 2 MiB;
 *           workers with berths share it. What is staged without one is another
 *           copy.
 * Threads:  any; fill and empty take turns. That nothing reads meanwhile is the
 *           caller's: on a GPU the work is done, not only launched.
 * Death:    as for leases: what is mapped stays.
 * Fork:     in the child every call answers HOIST_FAILED_PRECONDITION; an
 *           emulated device's bytes can be read there. */
typedef struct hoist_berth hoist_berth;

/* Reserves addresses; nothing is staged. The berth keeps neither session nor
 * model. */
HOIST_API int hoist_berth_create(hoist_session* session,
                                 const hoist_model* model,
                                 const uint32_t* groups, size_t group_count,
                                 uint32_t device, hoist_berth** berth,
                                 hoist_error** error);
/* Stages the groups, and maps each at its address. Of a full berth: nothing
 * happens. It keeps the session until it is empty.
 * deadline_ms: to wait for space, of each group; 0: refuse at once.
 * INVALID_ARGUMENT: they are not as many as the berth's, or their tensors lie
 * otherwise, or their device is another. That their bytes are the same, the
 * caller knows by the model's fingerprint. On any error the berth is empty. */
HOIST_API int hoist_berth_fill(hoist_berth* berth, hoist_session* session,
                               const hoist_model* model, const uint32_t* groups,
                               size_t group_count, uint64_t deadline_ms,
                               hoist_error** error);
/* Gives everything back but the addresses. Of an empty berth: nothing. */
HOIST_API int hoist_berth_empty(hoist_berth* berth, hoist_error** error);
/* Of a group's first byte, by its place among those of the berth; the same for
 * the berth's life, full or empty. NULL: the image is empty. */
HOIST_API int hoist_berth_address(const hoist_berth* berth, size_t group,
                                  const void** data, hoist_error** error);
/* Empties it, and gives the addresses back. */
HOIST_API void hoist_berth_free(hoist_berth* berth);

#ifdef __cplusplus
}
#endif

#endif /* HOIST_C_BERTH_H_ */
