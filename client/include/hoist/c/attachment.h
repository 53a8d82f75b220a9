/* hoist_c.h: attachments, a model's groups under a plan across hoistds. */
#ifndef HOIST_C_ATTACHMENT_H_
#define HOIST_C_ATTACHMENT_H_

#include "hoist/c/plan.h"
#include "hoist/c/session.h"

#ifdef __cplusplus
extern "C" {
#endif

/* A model's groups under a plan, found again after hoistd's end.
 *
 * An attachment is a session, a model and a plan of its own. After the end of
 * hoistd, the session or the plan, the next hoist_attachment_stage renews it.
 * That connects again, waiting for the next hoistd, finds the model by its
 * source, and checks that it has the same weights. Then it sets the plan with
 * the last budget and order.
 *
 *   hoist_attachment_stage(attachment, group, stream, 0, &data, &error);
 *   ... kernels on `stream` that read `data` ...
 *   hoist_attachment_done(attachment, group, stream, &error);
 *
 * Numbers:  groups and tensors have the numbers of the first model, for good,
 *           even if the next hoistd numbers them otherwise.
 * Memory:   an address is valid from the group's stage until its done. While a
 *           group is staged nothing is renewed, and its memory stays.
 * Results:  on an emulated device, results of staged groups are right, whatever
 *           ends. On a GPU, work since the last hoist_attachment_check is void
 *           when the plan ends. The first stage, done or end_pass to notice
 *           says so once (HOIST_UNAVAILABLE), and the next check too. Run the
 *           pass again: the next stage renews.
 * Graphs:   captured ones are void after a renewal: compare the generation
 *           (hoist_attachment_info) before each launch.
 * Threads:  any. One renews, while the others wait.
 * Errors:   of a renewal, from the call that needed it; the next call tries
 *           again. UNAVAILABLE: no hoistd within renew_deadline_ms; what was
 *           mapped stays so. FAILED_PRECONDITION: the next hoistd has another
 *           kind of device.
 *           DEADLINE_EXCEEDED: one is there, and silent, for the connection's
 *           call_deadline_ms, or hoist_set_patience.
 *           DATA_LOSS: the source has other weights than at first. NOT_FOUND:
 *           hoistd has the weights no more. Others: of hoist_connect,
 *           hoist_register_model, hoist_describe_model, hoist_set_plan.
 * Sleep:    if its plan gives way, the attachment has a thread. Once it is idle
 *           and hoistd asks (hoist_plan_info), that gives the memory of the
 *           plan and the residents back; results stay right. The next stage
 *           sets the plan again, as does `hoistctl wake`. RESOURCE_EXHAUSTED:
 *           no room; the next stage tries again. A pass is over with
 *           hoist_attachment_end_pass, or 1 s after its last stage.
 * Fork:     in the child every call answers HOIST_FAILED_PRECONDITION. */
typedef struct hoist_attachment hoist_attachment;

/* Options of hoist_attach. Just one of `name`, `files` and `content`. All is
 * copied. */
typedef struct hoist_attachment_options {
  size_t struct_size;
  const char* name;                    /* As for hoist_describe_model. */
  const hoist_register_options* files; /* As for hoist_register_model. */
  /* As for hoist_find_content: HOIST_CONTENT_BYTES bytes. */
  const uint8_t* content;
  const hoist_connect_options* connect; /* As for hoist_connect. */
  /* As for hoist_set_plan. */
  const hoist_plan_options* plan;
  /* Groups that stay resident, whatever the plan chooses. The budget includes
   * them. With them, only hoist_attachment_end_pass ends the learning of an
   * order. */
  const uint32_t* residents;
  size_t resident_count;
  /* How long a renewal waits for the next hoistd, counted from its first
   * attempt; later attempts then try once. 0: 60 s. */
  uint64_t renew_deadline_ms;
  /* NULL, or both: a session to begin with, which the attachment shares, and
   * the source's model there. Renewals use `connect` and the source. Its end
   * ends the session's use of the model, as hoist_done_with_model. */
  const hoist_session* session;
  const hoist_model* model;
} hoist_attachment_options;

/* Connects, finds the model, and sets the plan. Fails as hoist_connect, the
 * source's call, and hoist_set_plan; hoistd then forgets a model that it has
 * made of `files`, as hoist_forget_unused_model. */
HOIST_API int hoist_attach(const hoist_attachment_options* options,
                           hoist_attachment** attachment, hoist_error** error);
/* Waits for the GPU, and gives everything back; see hoist_plan_free. NULL is
 * allowed. */
HOIST_API void hoist_attachment_free(hoist_attachment* attachment);

/* As hoist_plan_stage_in_turn; renews first, if need be. `turn_deadline_ms`
 * also limits the wait for other threads' groups, staged before the end of
 * their plan; 0: UNAVAILABLE at once. End such groups with their done. */
HOIST_API int hoist_attachment_stage(hoist_attachment* attachment,
                                     uint32_t group, hoist_stream stream,
                                     uint64_t turn_deadline_ms,
                                     const void** data, hoist_error** error);
/* As hoist_plan_done. Also ends a stage whose plan has ended. */
HOIST_API int hoist_attachment_done(hoist_attachment* attachment,
                                    uint32_t group, hoist_stream stream,
                                    hoist_error** error);
/* As hoist_plan_end_pass. Renews nothing. */
HOIST_API int hoist_attachment_end_pass(hoist_attachment* attachment,
                                        int* changed, hoist_error** error);
/* HOIST_OK if results since the last check are valid. Call it after
 * synchronizing, before results are used. Renews nothing. */
HOIST_API int hoist_attachment_check(hoist_attachment* attachment,
                                     hoist_error** error);
/* Renews, if need be, as the next stage would. */
HOIST_API int hoist_attachment_renew(hoist_attachment* attachment,
                                     hoist_error** error);
/* As hoist_plan_set_budget; for later hoistds, too. */
HOIST_API int hoist_attachment_set_budget(hoist_attachment* attachment,
                                          uint64_t bytes, hoist_error** error);
/* As hoist_plan_set_order; for later hoistds, too. */
HOIST_API int hoist_attachment_set_order(hoist_attachment* attachment,
                                         const uint32_t* order,
                                         size_t order_length,
                                         hoist_error** error);
/* An eventfd for poll(2), readable when the plan was remade or renewed, or has
 * ended or given way, since the last read. Read its 8 bytes, then ask
 * hoist_attachment_describe. The attachment owns and closes it. -1:
 * `attachment` is NULL. */
HOIST_API int hoist_attachment_event_fd(const hoist_attachment* attachment);

/* States of an attachment. */
enum {
  HOIST_ATTACHMENT_READY = 1,    /* A plan stands. */
  HOIST_ATTACHMENT_ENDED = 2,    /* It has ended; the next stage renews. */
  HOIST_ATTACHMENT_RENEWING = 3, /* The plan is being replaced. */
  HOIST_ATTACHMENT_ASLEEP = 4    /* No plan; the next stage sets one. */
};

/* Result of hoist_attachment_describe. */
typedef struct hoist_attachment_info {
  size_t struct_size;
  int state;         /* HOIST_ATTACHMENT_*. */
  uint64_t renewals; /* So far. */
  /* Grows with each remake of the plan and each renewal, and when the memory
   * was given back. Addresses and graphs of older generations are void. */
  uint64_t generation;
} hoist_attachment_info;

/* What the attachment is by now; notices the plan's end. */
HOIST_API int hoist_attachment_describe(hoist_attachment* attachment,
                                        hoist_attachment_info* info,
                                        hoist_error** error);
/* The plan's numbers; `generation` is the attachment's. Forced residents are
 * not among them, except in the budget. Renews, if need be. */
HOIST_API int hoist_attachment_plan(hoist_attachment* attachment,
                                    hoist_plan_info* info, hoist_error** error);
/* As hoist_plan_group_kind, of the last plan; forced residents are residents.
 * Renews nothing. */
HOIST_API int hoist_attachment_group_kind(hoist_attachment* attachment,
                                          uint32_t group, int* kind,
                                          hoist_error** error);
/* As hoist_plan_get_stats, of the last plan. Renews nothing. */
HOIST_API int hoist_attachment_get_stats(hoist_attachment* attachment,
                                         hoist_plan_stats* stats,
                                         hoist_error** error);
/* The model as first found. */
HOIST_API int hoist_attachment_model(const hoist_attachment* attachment,
                                     hoist_model** model, hoist_error** error);
/* A tensor with its address in every stage of this generation; NULL if the
 * order lacks the group, which then has a new address in each stage.
 * `offset_bytes` may change with the generation. Renews, if need be. */
HOIST_API int hoist_attachment_tensor(hoist_attachment* attachment,
                                      uint32_t group, uint32_t tensor,
                                      hoist_tensor_info* info,
                                      hoist_error** error);

#ifdef __cplusplus
}
#endif

#endif /* HOIST_C_ATTACHMENT_H_ */
