/* hoist_c.h: groups leased on a device, and in host memory. */
#ifndef HOIST_C_STAGE_H_
#define HOIST_C_STAGE_H_

#include "hoist/c/model.h"

#ifdef __cplusplus
extern "C" {
#endif

/* Leases the group's image once it is usable on the device. `deadline_ms`: the
 * wait for space; 0: refuse at once. RESOURCE_EXHAUSTED: the message says how
 * much would be enough. */
HOIST_API int hoist_stage(hoist_session* session, const hoist_model* model,
                          uint32_t group, uint32_t device, uint64_t deadline_ms,
                          hoist_lease** lease, hoist_error** error);
/* Gives the image back, and waits until hoistd has it. Work that reads it must
 * be finished: the memory may be unmapped at any time from now on. With a
 * silent hoistd it waits 5 s at most, and later releases 0.1 s; a stopped
 * hoistd takes them back when it continues. The handle must still be freed. A
 * second release does nothing. */
HOIST_API int hoist_lease_release(hoist_lease* lease, hoist_error** error);
/* Frees the handle; releases first if need be, without waiting. */
HOIST_API void hoist_lease_free(hoist_lease* lease);

/* HOIST_OK while the image may be read. FAILED_PRECONDITION: released, session
 * closed, forked. UNAVAILABLE: hoistd is gone. */
HOIST_API int hoist_lease_check(const hoist_lease* lease, hoist_error** error);
/* The image's first byte on the device, read-only; NULL if it may not be read,
 * or is empty. */
HOIST_API const void* hoist_lease_data(const hoist_lease* lease);
/* Of the image. */
HOIST_API uint64_t hoist_lease_bytes(const hoist_lease* lease);
/* hoistd's number of it. */
HOIST_API uint64_t hoist_lease_id(const hoist_lease* lease);
/* The image's group, by number. */
HOIST_API uint32_t hoist_lease_group(const hoist_lease* lease);
/* hoistd's number of the image's device. */
HOIST_API uint32_t hoist_lease_device(const hoist_lease* lease);
/* HOIST_DEVICE_EMULATED or HOIST_DEVICE_CUDA. */
HOIST_API int hoist_lease_device_kind(const hoist_lease* lease);
/* 1: the image was there; nothing was copied. */
HOIST_API int hoist_lease_was_resident(const hoist_lease* lease);
/* The number of tensors; numbers start at 0. */
HOIST_API uint32_t hoist_lease_tensor_count(const hoist_lease* lease);
/* By number, in image order, with its address. OUT_OF_RANGE: none such. */
HOIST_API int hoist_lease_tensor(const hoist_lease* lease, uint32_t tensor,
                                 hoist_tensor_info* info, hoist_error** error);
/* By name, with its address. NOT_FOUND: the group has none such. */
HOIST_API int hoist_lease_find_tensor(const hoist_lease* lease,
                                      const char* name, hoist_tensor_info* info,
                                      hoist_error** error);

/* Targets of hoist_prefetch. */
enum {
  HOIST_TIER_DEVICE = 1, /* On a device. */
  HOIST_TIER_HOST = 2,   /* In hoistd's pinned memory. */
  HOIST_TIER_DISK = 3    /* On the disk alone. */
};

/* Queues a prefetch of groups to a tier, in order of first need, and returns.
 * Only HOIST_TIER_DEVICE uses `device`.
 *
 * HOIST_TIER_DISK spills groups of a model that ends with this session
 * (of_session in hoist_publish_options), to make room on the host; a later
 * request brings them back. PERMISSION_DENIED: another model.
 * FAILED_PRECONDITION: some stay on the host, in use or not writable; the
 * message says which and why. The others are spilled. */
HOIST_API int hoist_prefetch(hoist_session* session, const hoist_model* model,
                             const uint32_t* groups, size_t group_count,
                             int tier, uint32_t device, hoist_error** error);
/* Declares the order in which this session repeatedly stages the model's
 * groups. Empty: no order, and the session is done with the model until its
 * next request, even if handles hold it; see hoist_done_with_model. */
HOIST_API int hoist_set_order(hoist_session* session, const hoist_model* model,
                              const uint32_t* groups, size_t group_count,
                              hoist_error** error);

/* Has hoistd's pool leave `bytes` of its device memory to this process, which
 * lacks them: idle copies go, and plans that give way end with their pass. It
 * returns once that memory is free. The pool takes it again after a spare of 0
 * bytes, the session's end or hoistd's; a new spare replaces the last one.
 * `deadline_ms`: limit of the wait; 0: none. RESOURCE_EXHAUSTED: hoistd has
 * less, or others kept it; the text names the bytes that it could leave.
 * FAILED_PRECONDITION: another call of the session waits for a spare there.
 * UNIMPLEMENTED: hoistd is too old. NOT_FOUND: it has no such device. */
HOIST_API int hoist_spare(hoist_session* session, uint32_t device,
                          uint64_t bytes, uint64_t deadline_ms,
                          hoist_error** error);

/* Fetches: asynchronous stages of groups to a device.
 *
 * A prefetch is advice without an answer. A fetch can be polled, waited for and
 * cancelled, and holds the groups that have come until it is freed. */
typedef struct hoist_fetch hoist_fetch;

/* Starts to load the groups to the device, in order, and returns. Each loaded
 * group is leased until the fetch is freed, so its stage does not wait.
 * `deadline_ms`: each group's wait for space. */
HOIST_API int hoist_fetch_start(hoist_session* session,
                                const hoist_model* model,
                                const uint32_t* groups, size_t group_count,
                                uint32_t device, uint64_t deadline_ms,
                                hoist_fetch** fetch, hoist_error** error);
/* Waits until all groups are there, `timeout_ms` at most; 0: polls. `there`,
 * unless NULL, gets their count, also on errors. DEADLINE_EXCEEDED: some are
 * not there yet. CANCELLED: the fetch was cancelled. Other errors:
 * hoist_stage's, of the next group; later groups are not tried. */
HOIST_API int hoist_fetch_wait(const hoist_fetch* fetch, uint64_t timeout_ms,
                               size_t* there, hoist_error** error);
/* An eventfd, readable once hoist_fetch_wait would not wait any more, until its
 * 8 bytes are read. The fetch owns and closes it. -1: `fetch` is NULL. */
HOIST_API int hoist_fetch_event_fd(const hoist_fetch* fetch);
/* Cancels the group on its way and all later ones, without waiting. Loaded
 * groups stay. */
HOIST_API void hoist_fetch_cancel(hoist_fetch* fetch);
/* Cancels the fetch, and releases the loaded groups. */
HOIST_API void hoist_fetch_free(hoist_fetch* fetch);

/* Host images: a group's bytes, readable by this process's CPUs.
 *
 * hoistd makes the copy on request, from any tier or file. Its address is
 * constant and known before the load, so that tensors can be built over it
 * once. It belongs to this process, and pins nothing in hoistd. */
typedef struct hoist_host_image hoist_host_image;

/* Reserves addresses for the group's image; reads no bytes, takes no memory.
 * Before hoist_host_image_load, and after hoist_host_image_drop, an access
 * faults (SIGSEGV). */
HOIST_API int hoist_host_image_create(hoist_session* session,
                                      const hoist_model* model, uint32_t group,
                                      hoist_host_image** image,
                                      hoist_error** error);
/* Waits until the bytes are there, read-only. A second load does nothing.
 * `deadline_ms`: the wait for space in hoistd's host tier; 0: refuse at once.
 * The memory is this process's own: RESOURCE_EXHAUSTED if it has none. */
HOIST_API int hoist_host_image_load(hoist_host_image* image,
                                    uint64_t deadline_ms, hoist_error** error);
/* Makes later loads read that group: after the end of a session, from another
 * session's model of the same content. The caller compares the contents
 * (hoist_model_fingerprint). Addresses and loaded bytes stay. INVALID_ARGUMENT:
 * that group's tensor layout differs; the image is unchanged. */
HOIST_API int hoist_host_image_move(hoist_host_image* image,
                                    hoist_session* session,
                                    const hoist_model* model, uint32_t group,
                                    hoist_error** error);
/* Frees the memory, and keeps the addresses. No thread may be reading. */
HOIST_API void hoist_host_image_drop(hoist_host_image* image);
/* 1 between load and drop, also after the session's end. */
HOIST_API int hoist_host_image_is_loaded(const hoist_host_image* image);
/* Constant; NULL if the image is empty. */
HOIST_API const void* hoist_host_image_data(const hoist_host_image* image);
/* Of the image. */
HOIST_API uint64_t hoist_host_image_bytes(const hoist_host_image* image);
/* Drops, and ends the reservation. NULL is allowed. */
HOIST_API void hoist_host_image_free(hoist_host_image* image);

#ifdef __cplusplus
}
#endif

#endif /* HOIST_C_STAGE_H_ */
