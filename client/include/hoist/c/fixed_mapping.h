/* hoist_c.h: addresses to which groups are mapped and unmapped. */
#ifndef HOIST_C_FIXED_MAPPING_H_
#define HOIST_C_FIXED_MAPPING_H_

#include "hoist/c/model.h"

#ifdef __cplusplus
extern "C" {
#endif

/* Reserved addresses of this process for some groups of a model. While the
 * mapping is full, each group's image is readable at its own address. While it
 * is empty, nothing is mapped or leased. So a sleeping engine gives back its
 * weights and its session, and its pointers and CUDA graphs are valid again
 * after the wake-up.
 *
 *   hoist_fixed_mapping* m;
 *   hoist_fixed_mapping_create(session, model, groups, count, 0, &m, &error);
 *   hoist_fixed_mapping_address(m, 0, &data, &error);
 *   hoist_fixed_mapping_fill(m, session, model, groups, count, 30000, &error);
 *   ... kernels that read `data` ...
 *   hoist_fixed_mapping_empty(m, &error);    after the last read
 *   hoist_session_free(session);             hours later: another session,
 *   hoist_fixed_mapping_fill(m, session2, model2, groups2, ...);   or hoistd
 *
 * Memory:   each image has device memory of its own, a multiple of 2 MiB,
 *           shared by workers with mappings. A lease of the group is another
 *           copy.
 * Threads:  any; fill and empty are serialized. Meanwhile nothing may read: on
 *           a GPU the work is done, not only launched.
 * Death:    as for leases: mapped images stay.
 * Fork:     in the child every call answers HOIST_FAILED_PRECONDITION; an
 *           emulated device's bytes can be read there. */
typedef struct hoist_fixed_mapping hoist_fixed_mapping;

/* Reserves addresses; stages nothing. The mapping holds neither session nor
 * model. */
HOIST_API int hoist_fixed_mapping_create(hoist_session* session,
                                         const hoist_model* model,
                                         const uint32_t* groups,
                                         size_t group_count, uint32_t device,
                                         hoist_fixed_mapping** mapping,
                                         hoist_error** error);
/* Stages the groups, and maps each at its address. No effect on a full mapping.
 * The mapping holds the session until it is empty. deadline_ms: each group's
 * wait for space; 0: refuse at once. INVALID_ARGUMENT: the count of groups, the
 * layout of their tensors or the device differs from the mapping's. The caller
 * compares the bytes, by the model's fingerprint. After an error the mapping is
 * empty. */
HOIST_API int hoist_fixed_mapping_fill(hoist_fixed_mapping* mapping,
                                       hoist_session* session,
                                       const hoist_model* model,
                                       const uint32_t* groups,
                                       size_t group_count, uint64_t deadline_ms,
                                       hoist_error** error);
/* Gives everything back but the addresses. No effect on an empty mapping. */
HOIST_API int hoist_fixed_mapping_empty(hoist_fixed_mapping* mapping,
                                        hoist_error** error);
/* The address of a group's first byte, by its index in the mapping; constant
 * for the mapping's life, full or empty. NULL: the image is empty. */
HOIST_API int hoist_fixed_mapping_address(const hoist_fixed_mapping* mapping,
                                          size_t group, const void** data,
                                          hoist_error** error);
/* Empties it, and gives the addresses back. */
HOIST_API void hoist_fixed_mapping_free(hoist_fixed_mapping* mapping);

#ifdef __cplusplus
}
#endif

#endif /* HOIST_C_FIXED_MAPPING_H_ */
