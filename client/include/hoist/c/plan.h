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
 * memory. Some groups stay resident; hoistd streams the others through a ring,
 * ahead of their use. Each group has one address as long as the plan stands.
 *
 *   hoist_plan_stage(plan, group, stream, &data, &error);
 *   ... kernels on `stream` that read `data` ...
 *   hoist_plan_done(plan, group, stream, &error);
 *
 * In steady state neither call waits for the GPU, makes a system call or sends
 * a message: the stream waits for the bytes, and signals hoistd after their
 * last use.
 *
 * Order:    a skipped or repeated group, or one outside the order, is correct,
 *           slower, and counted.
 * Streams:  any, of the device's primary context; a stream's handle must stay
 *           valid until the plan is freed. libhoist orders groups that several
 *           streams use: the last done waits for all of them.
 * Graphs:   both calls may be captured. From the first capture on the plan
 *           keeps to a repeatable form: launches of one plan's graphs must not
 *           overlap, and each repeats its captured order. Groups outside the
 *           plan cannot be captured. A graph is void once the plan is freed or
 *           remade: a launch after a remake ends the plan
 *           (HOIST_FAILED_PRECONDITION).
 * Death:    if hoistd, the session or the plan ends, streams do not hang: their
 *           waits are let through, results since then are void, and calls
 *           return the reason. Call hoist_plan_check after synchronizing,
 *           before results are used.
 * Fork:     in the child every call answers HOIST_FAILED_PRECONDITION. */
typedef struct hoist_plan hoist_plan;
/* CUDA's own CUstream and cudaStream_t, which are this type. */
typedef struct CUstream_st* hoist_stream;

/* Options of hoist_set_plan. */
typedef struct hoist_plan_options {
  size_t struct_size;
  uint32_t device;
  /* Device memory for residents and ring; 0: as much as hoistd can promise. */
  uint64_t budget_bytes;
  /* The order of one pass; groups may repeat. Empty: the order is learned.
   * Until hoist_plan_end_pass, or the second stage of the pass's first group,
   * the model's own order applies. */
  const uint32_t* order;
  size_t order_length;
  uint64_t deadline_ms; /* To wait for space; 0: refuse at once. */
  /* Limit of a group's load, after which the plan ends with DEADLINE_EXCEEDED;
   * 0: 60 s. */
  uint64_t stage_deadline_ms;
  /* Share of the link, beside the device's other plans. */
  uint32_t weight;               /* 1 to 1,000; 0: 1. */
  int32_t priority;              /* -10 to 10; higher goes first. */
  uint64_t max_bytes_per_second; /* 0: no cap. */
  /* 1: `order` applies only until another is learned, from the pass that the
   * first hoist_plan_end_pass ends. */
  int learn;
  /* 1: the plan gives way: hoistd asks for its memory, for an admin and, while
   * its budget is 0, when others need it; see hoist_plan_info. */
  int gives_way;
  /* Of each group of the model: its block. A block's groups are staged
   * together, so that a budget pays for a part of each block. NULL: each group
   * is a block. Copied. INVALID_ARGUMENT: `block_count` is not the model's
   * number of groups. */
  const uint32_t* blocks;
  size_t block_count;
} hoist_plan_options;

/* `options` may be NULL: device 0, the promisable budget, a learned order.
 * RESOURCE_EXHAUSTED: the budget is too small (the message says how much would
 * be enough), or exceeds what other promises leave. A plan keeps its session
 * alive, unless the session is closed. */
HOIST_API int hoist_set_plan(hoist_session* session, const hoist_model* model,
                             const hoist_plan_options* options,
                             hoist_plan** plan, hoist_error** error);

/* Makes the group's image usable by later work on `stream`, of the device's
 * primary context (NULL: the default stream). An emulated device ignores it,
 * and the call returns when the bytes are there. `data`, unless NULL, gets the
 * image's address; NULL if it is empty. The CPU waits for a resident that is
 * still loading, and for a group outside the plan. FAILED_PRECONDITION: a group
 * that shares its place is staged and not done, or the stream is under capture
 * and the group cannot be captured. Stages of a group are counted: each needs
 * its done. */
HOIST_API int hoist_plan_stage(hoist_plan* plan, uint32_t group,
                               hoist_stream stream, const void** data,
                               hoist_error** error);
/* The same, but waits while a group that shares its place is staged, usually by
 * another thread: `turn_deadline_ms` at most. DEADLINE_EXCEEDED: its turn did
 * not come. Waiters are served in no particular order. Two threads that wait
 * for each other's groups both time out. */
HOIST_API int hoist_plan_stage_in_turn(hoist_plan* plan, uint32_t group,
                                       hoist_stream stream,
                                       uint64_t turn_deadline_ms,
                                       const void** data, hoist_error** error);
/* Earlier work on `stream` is the last to read the group's image.
 * FAILED_PRECONDITION: it is not staged. For a group outside the plan the CPU
 * waits for the stream. */
HOIST_API int hoist_plan_done(hoist_plan* plan, uint32_t group,
                              hoist_stream stream, hoist_error** error);
/* HOIST_OK while results computed under the plan are valid. Cheap, without a
 * message; notices the plan's end at once. */
HOIST_API int hoist_plan_check(const hoist_plan* plan, hoist_error** error);
/* An eventfd for poll(2), readable when the plan was remade, has ended, or was
 * asked to give way since the last read. Read its 8 bytes, then ask
 * hoist_plan_describe for the generation and the ask, and hoist_plan_check for
 * the end. The plan owns and closes it. */
HOIST_API int hoist_plan_event_fd(const hoist_plan* plan, int* fd,
                                  hoist_error** error);

/* Ends a pass; nothing may be staged. If the order is being learned and the
 * pass differed, the plan is remade with the new order. That waits for the GPU,
 * addresses change, and `changed`, unless NULL, gets 1. Without this call the
 * next stage of the pass's first group ends the pass, and may remake the plan:
 * call this where addresses are kept. On RESOURCE_EXHAUSTED and
 * INVALID_ARGUMENT the plan is unchanged, and learns no more; other errors of
 * hoistd end it. */
HOIST_API int hoist_plan_end_pass(hoist_plan* plan, int* changed,
                                  hoist_error** error);
/* Remakes the plan with another budget, between passes: nothing may be staged.
 * Waits for the GPU; addresses change. On RESOURCE_EXHAUSTED and
 * INVALID_ARGUMENT the plan is unchanged; other errors of hoistd end it. */
HOIST_API int hoist_plan_set_budget(hoist_plan* plan, uint64_t budget_bytes,
                                    hoist_error** error);
/* The same with another order of one pass; groups may repeat, and groups
 * outside it are staged by message. Learning ends. The plan's own order changes
 * nothing. OUT_OF_RANGE: the model has no such group. */
HOIST_API int hoist_plan_set_order(hoist_plan* plan, const uint32_t* order,
                                   size_t order_length, hoist_error** error);
/* Waits for the GPU, gives everything back, and waits until hoistd has it: with
 * a silent hoistd 5 s at most, as for leases. After that the GPU's waits are
 * let through, and its results are void. NULL is allowed. */
HOIST_API void hoist_plan_free(hoist_plan* plan);

/* Result of hoist_plan_describe. */
typedef struct hoist_plan_info {
  size_t struct_size;
  uint64_t id;
  uint32_t device;
  uint64_t budget_bytes;
  uint64_t resident_bytes;
  uint64_t ring_bytes;
  uint64_t streamed_bytes; /* Copied in each pass that follows the order. */
  uint32_t group_count;
  uint32_t streamed_count;
  uint32_t lead; /* Steps that a copy starts ahead; 1: not hidden. */
  int learning;  /* 1: the order is not yet known. */
  /* 1 at first; each remake adds one, and voids addresses of older
   * generations. */
  uint64_t generation;
  /* 1: hoistd asks for the plan's memory. Free the plan once no pass has used
   * it for `idle_ms`; 0: as soon as no pass runs. hoistd waits, and takes
   * nothing by itself. */
  int asked_to_give_way;
  uint64_t idle_ms;
} hoist_plan_info;

/* What the plan is by now. */
HOIST_API int hoist_plan_describe(const hoist_plan* plan, hoist_plan_info* info,
                                  hoist_error** error);

/* What a plan does with a group. */
enum {
  HOIST_PLANNED_RESIDENT = 1, /* And groups that are empty. */
  HOIST_PLANNED_STREAMED = 2, /* Through the ring, in each pass. */
  HOIST_PLANNED_NOT = 3       /* Outside the order: staged by message. */
};

/* HOIST_PLANNED_*. OUT_OF_RANGE: the model has no such group. */
HOIST_API int hoist_plan_group_kind(const hoist_plan* plan, uint32_t group,
                                    int* kind, hoist_error** error);
/* A tensor of a planned group, with its address in every stage of the group.
 * Waits for a resident that is still loading. FAILED_PRECONDITION: the group is
 * not in the plan. */
HOIST_API int hoist_plan_tensor(const hoist_plan* plan, uint32_t group,
                                uint32_t tensor, hoist_tensor_info* info,
                                hoist_error** error);
/* The same by name. NOT_FOUND: the group has none. hoist_model_find_tensor
 * finds a tensor's group. */
HOIST_API int hoist_plan_find_tensor(const hoist_plan* plan, uint32_t group,
                                     const char* name, hoist_tensor_info* info,
                                     hoist_error** error);

/* Result of hoist_plan_get_stats: counts since the plan was set. */
typedef struct hoist_plan_stats {
  size_t struct_size;
  uint64_t stages;          /* Of planned groups. */
  uint64_t resident_stages; /* Of those, of residents. */
  uint64_t ready_stages;    /* Streamed, and ready at once. */
  uint64_t skipped;         /* Skipped positions of the order. */
  uint64_t unplanned;       /* Stages of groups outside the plan. */
  uint64_t host_waits;      /* Times a call waited on the CPU. */
  uint64_t wake_ups;        /* System calls to wake hoistd. */
} hoist_plan_stats;

/* The plan's counts so far. */
HOIST_API int hoist_plan_get_stats(const hoist_plan* plan,
                                   hoist_plan_stats* stats,
                                   hoist_error** error);

#ifdef __cplusplus
}
#endif

#endif /* HOIST_C_PLAN_H_ */
