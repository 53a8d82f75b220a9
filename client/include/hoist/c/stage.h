/* hoist_c.h: groups on a device, leased, and in host memory. */
#ifndef HOIST_C_STAGE_H_
#define HOIST_C_STAGE_H_

#include "hoist/c/model.h"

#ifdef __cplusplus
extern "C" {
#endif

/* Waits until the group's image is usable on the device. `deadline_ms` is how
 * long to wait for space; 0: refuse at once. RESOURCE_EXHAUSTED says what would
 * be enough. */
HOIST_API int hoist_stage(hoist_session* session, const hoist_model* model,
                          uint32_t group, uint32_t device, uint64_t deadline_ms,
                          hoist_lease** lease, hoist_error** error);
/* Gives the image back, and waits until hoistd has it; work that reads it must
 * be finished, since the memory may be unmapped at any time from now on. For a
 * hoistd that gives no sign of life it waits 5 s at most, and later ones 0.1 s:
 * a hoistd that was stopped takes them back when it goes on. The handle is
 * still to be freed. Again: nothing happens. */
HOIST_API int hoist_lease_release(hoist_lease* lease, hoist_error** error);
/* Releases, if that is still to be done, without waiting. */
HOIST_API void hoist_lease_free(hoist_lease* lease);

/* HOIST_OK while the image may be read. FAILED_PRECONDITION: released, session
 * closed, forked. UNAVAILABLE: hoistd is gone. */
HOIST_API int hoist_lease_check(const hoist_lease* lease, hoist_error** error);
/* The image's first byte on the device; NULL if it may not be read, or is
 * empty. Read-only. */
HOIST_API const void* hoist_lease_data(const hoist_lease* lease);
/* Of the image. */
HOIST_API uint64_t hoist_lease_bytes(const hoist_lease* lease);
/* hoistd's number of it. */
HOIST_API uint64_t hoist_lease_id(const hoist_lease* lease);
/* Whose image it is. */
HOIST_API uint32_t hoist_lease_group(const hoist_lease* lease);
/* hoistd's number of the device where it lies. */
HOIST_API uint32_t hoist_lease_device(const hoist_lease* lease);
/* HOIST_DEVICE_EMULATED or HOIST_DEVICE_CUDA. */
HOIST_API int hoist_lease_device_kind(const hoist_lease* lease);
/* 1: nothing had to be copied for it. */
HOIST_API int hoist_lease_was_resident(const hoist_lease* lease);
/* Tensors have the numbers below this. */
HOIST_API uint32_t hoist_lease_tensor_count(const hoist_lease* lease);
/* By number, in image order, with its address. OUT_OF_RANGE: none such. */
HOIST_API int hoist_lease_tensor(const hoist_lease* lease, uint32_t tensor,
                                 hoist_tensor_info* info, hoist_error** error);
/* By name, with its address. NOT_FOUND: the group has none such. */
HOIST_API int hoist_lease_find_tensor(const hoist_lease* lease,
                                      const char* name, hoist_tensor_info* info,
                                      hoist_error** error);

/* Where groups can be asked for. */
enum {
  HOIST_TIER_DEVICE = 1, /* On a device. */
  HOIST_TIER_HOST = 2,   /* In hoistd's pinned memory. */
  HOIST_TIER_DISK = 3    /* On the disk alone. */
};

/* Asks for groups to be brought to a tier, in order of first need. Returns when
 * they are queued. `device` is looked at for HOIST_TIER_DEVICE only.
 *
 * HOIST_TIER_DISK: of a model that ends with this session (of_session in
 * hoist_publish_options), to make room on the host for others; they come back
 * when they are asked for. PERMISSION_DENIED: it does not end with it.
 * FAILED_PRECONDITION: some stay on the host, since they are in use or cannot
 * be written; the message says which and why, and the others go. */
HOIST_API int hoist_prefetch(hoist_session* session, const hoist_model* model,
                             const uint32_t* groups, size_t group_count,
                             int tier, uint32_t device, hoist_error** error);
/* The order in which this session will stage the model's groups, over and over;
 * empty: no order, and hoistd takes the session to be done with the model until
 * it asks for it again, whatever holds it; see hoist_done_with_model. */
HOIST_API int hoist_set_order(hoist_session* session, const hoist_model* model,
                              const uint32_t* groups, size_t group_count,
                              hoist_error** error);

/* Fetches: groups on their way to a device, for who has other things to do.
 *
 * Where a prefetch is advice that nobody hears of again, a fetch can be polled,
 * waited for and called off, and keeps what has come until it is freed. */
typedef struct hoist_fetch hoist_fetch;

/* Begins to bring the groups to the device, in order, and returns. Each that
 * has come is leased until the fetch is freed, so that to stage it waits for
 * nothing. `deadline_ms` is how long each waits for space. */
HOIST_API int hoist_fetch_start(hoist_session* session,
                                const hoist_model* model,
                                const uint32_t* groups, size_t group_count,
                                uint32_t device, uint64_t deadline_ms,
                                hoist_fetch** fetch, hoist_error** error);
/* Waits until all groups are there, `timeout_ms` at most; 0: asks. `there`,
 * unless NULL, gets how many are, on errors too. DEADLINE_EXCEEDED: not all are
 * yet. CANCELLED: it was called off. Else why the next group cannot come, as
 * hoist_stage says it; those after it are not tried. */
HOIST_API int hoist_fetch_wait(const hoist_fetch* fetch, uint64_t timeout_ms,
                               size_t* there, hoist_error** error);
/* Readable once hoist_fetch_wait has nothing to wait for any more; stays so
 * until its 8 bytes are read (an eventfd). It is the fetch's, and closed with
 * it. -1: NULL. */
HOIST_API int hoist_fetch_event_fd(const hoist_fetch* fetch);
/* Begins no further group, and gives up the one that is on its way. What has
 * come stays. Waits for nothing. */
HOIST_API void hoist_fetch_cancel(hoist_fetch* fetch);
/* Calls it off, and gives back what has come. */
HOIST_API void hoist_fetch_free(hoist_fetch* fetch);

/* Host images: a group's bytes where this process's CPUs can read them.
 *
 * A copy that hoistd makes when it is asked for, from whichever tier or file
 * has the bytes. Its address is known and constant before anything is read, so
 * that tensors can be built over it once; it belongs to this process, and pins
 * nothing in hoistd. */
typedef struct hoist_host_image hoist_host_image;

/* Reserves addresses for the group's image; no byte is read, no memory taken.
 * Until hoist_host_image_load, and again after hoist_host_image_drop, touching
 * them faults (SIGSEGV). */
HOIST_API int hoist_host_image_create(hoist_session* session,
                                      const hoist_model* model, uint32_t group,
                                      hoist_host_image** image,
                                      hoist_error** error);
/* Waits until the bytes are there, read-only. Again: nothing happens.
 * `deadline_ms` is how long to wait for space in hoistd's host tier; 0: refuse
 * at once. The memory is this process's own: RESOURCE_EXHAUSTED if it has none.
 */
HOIST_API int hoist_host_image_load(hoist_host_image* image,
                                    uint64_t deadline_ms, hoist_error** error);
/* From now on hoist_host_image_load brings the bytes of that group: for an
 * image whose session has ended, with another session's model of the same
 * content, which the caller vouches for (hoist_model_fingerprint). Addresses
 * stay, and so does what is loaded. INVALID_ARGUMENT: that group's tensors lie
 * otherwise; the image is as it was. */
HOIST_API int hoist_host_image_move(hoist_host_image* image,
                                    hoist_session* session,
                                    const hoist_model* model, uint32_t group,
                                    hoist_error** error);
/* Gives the memory back, and keeps the addresses. No thread may be reading. */
HOIST_API void hoist_host_image_drop(hoist_host_image* image);
/* 1: between load and drop. Stays so after the session's end. */
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
