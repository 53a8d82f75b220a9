/* hoist_c.h: plans, layer after layer at the speed of the link. */
#ifndef HOIST_C_PLAN_H_
#define HOIST_C_PLAN_H_

#include "hoist/c/model.h"

#ifdef __cplusplus
extern "C" {
#endif

/* Layer after layer at the speed of the link.
 *
 * A plan is a pass over a model's groups, in order, and a budget of device
 * memory. Some of the groups stay resident; the others are streamed through a
 * ring, loaded ahead of their use by hoistd. Each group has one address for as
 * long as the plan stands.
 *
 *   hoist_plan_stage(plan, group, stream, &data, &error);
 *   ... kernels on `stream` that read `data` ...
 *   hoist_plan_done(plan, group, stream, &error);
 *
 * In steady state neither call waits for the GPU, makes a system call or sends
 * a message: the stream itself waits for the bytes, and tells hoistd when it is
 * done with them.
 *
 * Order:    a group that is skipped, repeated or not in the order is right,
 *           slower, and counted.
 * Streams:  any, of the device's primary context; a handle that was given stays
 *           valid until the plan is freed. Groups that several streams use are
 *           ordered here: the last done waits for all of them.
 * Graphs:   both calls may be captured. From the first capture on the plan
 *           keeps to a form that graphs can repeat: launches of one plan's
 *           graphs must not overlap, and each repeats the order that it was
 *           captured with. Groups outside the plan cannot be captured. A graph
 *           is void once the plan is freed or made anew.
 * Death:    if hoistd, the session or the plan ends, waits of streams are let
 *           through rather than left to hang, and what was computed since is
 *           void: calls return the reason. Ask hoist_plan_check after
 *           synchronizing, before results are used.
 * Fork:     in the child every call answers HOIST_FAILED_PRECONDITION. */
typedef struct hoist_plan hoist_plan;
/* CUDA's own CUstream and cudaStream_t, which are this type. */
typedef struct CUstream_st* hoist_stream;

/* Of hoist_set_plan. */
typedef struct hoist_plan_options {
  size_t struct_size;
  uint32_t device;
  /* Of device memory, residents and ring together; 0: what hoistd can promise.
   */
  uint64_t budget_bytes;
  /* Of one pass; a group may come several times. Empty: the order is learned.
   * The model's own order serves until hoist_plan_end_pass, or until the first
   * group of the pass comes again. */
  const uint32_t* order;
  size_t order_length;
  uint64_t deadline_ms; /* To wait for space; 0: refuse at once. */
  /* For a group's bytes to come, after which the plan ends with
   * DEADLINE_EXCEEDED; 0: 60 s. */
  uint64_t stage_deadline_ms;
  /* How the link is shared with other plans of the device. */
  uint32_t weight;               /* 1 to 1,000; 0: 1. */
  int32_t priority;              /* -10 to 10; higher goes first. */
  uint64_t max_bytes_per_second; /* 0: no cap. */
  /* 1: `order` serves only until one has been learned, from the pass that the
   * first hoist_plan_end_pass ends. */
  int learn;
} hoist_plan_options;

/* `options` may be NULL: device 0, what can be promised, a learned order.
 * RESOURCE_EXHAUSTED: the budget is too small, and says what would do; or that
 * much cannot be promised beside what others were promised. The session lives
 * on while one of its plans does, unless it is closed. */
HOIST_API int hoist_set_plan(hoist_session* session, const hoist_model* model,
                             const hoist_plan_options* options,
                             hoist_plan** plan, hoist_error** error);

/* Makes the group's image usable by what is put on `stream` from now on.
 * `stream` is one of the device's primary context (NULL: the default
 * stream); on an emulated device it is ignored, and the call returns when the
 * bytes are there. `data`, unless NULL, gets the image's address; NULL if it is
 * empty. A resident that is still on its way, and a group outside the plan, are
 * waited for on the CPU. FAILED_PRECONDITION: a group that shares its place is
 * staged and not done, or the stream is being captured and the group cannot be.
 * Staging a group again before it is done counts: as many dones end it. */
HOIST_API int hoist_plan_stage(hoist_plan* plan, uint32_t group,
                               hoist_stream stream, const void** data,
                               hoist_error** error);
/* The same, but that it waits for its turn where a group that shares its place
 * is staged, by another thread as a rule: `turn_deadline_ms` at most.
 * DEADLINE_EXCEEDED: its turn did not come. Which of several that wait is next
 * is not said; a thread that holds what another waits for, and waits for what
 * that holds, gets nothing but its deadline. */
HOIST_API int hoist_plan_stage_in_turn(hoist_plan* plan, uint32_t group,
                                       hoist_stream stream,
                                       uint64_t turn_deadline_ms,
                                       const void** data, hoist_error** error);
/* What is on `stream` by now is the last that reads the group's image.
 * FAILED_PRECONDITION: it is not staged. A group outside the plan is ended by
 * waiting for the stream on the CPU. */
HOIST_API int hoist_plan_done(hoist_plan* plan, uint32_t group,
                              hoist_stream stream, hoist_error** error);
/* HOIST_OK while what is computed under the plan may be trusted. Cheap, and no
 * message; notices the end as it happens. */
HOIST_API int hoist_plan_check(const hoist_plan* plan, hoist_error** error);
/* A descriptor that is readable once the plan was made anew or has ended since
 * it was read last: an eventfd, for poll(2). Read its 8 bytes, then ask
 * hoist_plan_describe for the generation and hoist_plan_check for the end. It
 * is the plan's, and closed with it. */
HOIST_API int hoist_plan_event_fd(const hoist_plan* plan, int* fd,
                                  hoist_error** error);

/* The end of a pass. If the order is being learned and the pass differed, the
 * plan is made anew with what was seen (waits for the GPU; addresses change,
 * and `changed`, unless NULL, gets 1). Nothing may be staged. Without this call
 * the pass ends, and the plan may be made anew, within the stage that brings
 * its first group again: call this where addresses are kept. On
 * RESOURCE_EXHAUSTED and INVALID_ARGUMENT the plan stands as before, and learns
 * no more; any other error of hoistd's ends it. */
HOIST_API int hoist_plan_end_pass(hoist_plan* plan, int* changed,
                                  hoist_error** error);
/* Makes the plan anew with another budget, between passes: nothing may be
 * staged. Waits for the GPU; addresses change. On RESOURCE_EXHAUSTED and
 * INVALID_ARGUMENT the plan stands as before; any other error of hoistd's ends
 * it. */
HOIST_API int hoist_plan_set_budget(hoist_plan* plan, uint64_t budget_bytes,
                                    hoist_error** error);
/* The same with another order, of one pass; its groups may come several times,
 * and what is not in it is staged by message. Nothing is learned any more. If
 * the order is the plan's already, nothing changes. OUT_OF_RANGE: the model has
 * no such group. */
HOIST_API int hoist_plan_set_order(hoist_plan* plan, const uint32_t* order,
                                   size_t order_length, hoist_error** error);
/* Waits for the GPU, gives everything back, and waits until hoistd has it. For
 * a hoistd that gives no sign of life it waits 5 s at most, as for leases: what
 * the GPU waits for is then let through, and what it computes with that is
 * void. NULL is allowed. */
HOIST_API void hoist_plan_free(hoist_plan* plan);

/* Of hoist_plan_describe. */
typedef struct hoist_plan_info {
  size_t struct_size;
  uint64_t id;
  uint32_t device;
  uint64_t budget_bytes;
  uint64_t resident_bytes;
  uint64_t ring_bytes;
  uint64_t streamed_bytes; /* Copied in each pass that keeps to the order. */
  uint32_t group_count;
  uint32_t streamed_count;
  uint32_t lead; /* Steps ahead that a copy can start; 1: not hidden. */
  int learning;  /* 1: the order is not known yet. */
  /* 1 at first, and one more each time that the plan was made anew: addresses
   * of an older generation are void. */
  uint64_t generation;
} hoist_plan_info;

/* What the plan is by now. */
HOIST_API int hoist_plan_describe(const hoist_plan* plan, hoist_plan_info* info,
                                  hoist_error** error);

/* What a plan does with a group. */
enum {
  HOIST_PLANNED_RESIDENT = 1, /* And groups that are empty. */
  HOIST_PLANNED_STREAMED = 2, /* Through the ring, in each pass. */
  HOIST_PLANNED_NOT = 3       /* Not in the order: staged by message. */
};

/* HOIST_PLANNED_*. OUT_OF_RANGE: the model has no such group. */
HOIST_API int hoist_plan_group_kind(const hoist_plan* plan, uint32_t group,
                                    int* kind, hoist_error** error);
/* A tensor of a planned group, with the address that it has whenever the group
 * is staged. Waits for a resident that is still on its way.
 * FAILED_PRECONDITION: the group is not in the plan. */
HOIST_API int hoist_plan_tensor(const hoist_plan* plan, uint32_t group,
                                uint32_t tensor, hoist_tensor_info* info,
                                hoist_error** error);
/* The same by name. NOT_FOUND: the group has none. Which group of the model has
 * it, hoist_model_find_tensor says. */
HOIST_API int hoist_plan_find_tensor(const hoist_plan* plan, uint32_t group,
                                     const char* name, hoist_tensor_info* info,
                                     hoist_error** error);

/* Of hoist_plan_get_stats: counts since the plan was set. */
typedef struct hoist_plan_stats {
  size_t struct_size;
  uint64_t stages;          /* Of planned groups. */
  uint64_t resident_stages; /* Of those, of residents. */
  uint64_t ready_stages;    /* Streamed, and seen ready at once. */
  uint64_t skipped;         /* Positions of the order that were passed over. */
  uint64_t unplanned;       /* Stages of groups that are not in the plan. */
  uint64_t host_waits;      /* Times a call waited on the CPU. */
  uint64_t wake_ups;        /* System calls to wake hoistd. */
} hoist_plan_stats;

/* What the plan has done so far. */
HOIST_API int hoist_plan_get_stats(const hoist_plan* plan,
                                   hoist_plan_stats* stats,
                                   hoist_error** error);

#ifdef __cplusplus
}
#endif

#endif /* HOIST_C_PLAN_H_ */
