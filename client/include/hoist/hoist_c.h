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
 * Strings:  UTF-8, ended by NUL; those returned live as long as their handle.
 * Structs:  those that have `struct_size` first are filled with zero and then
 *           given sizeof their type by the caller, so that they can grow.
 */
#ifndef HOIST_HOIST_C_H_
#define HOIST_HOIST_C_H_

#include <stddef.h>
#include <stdint.h>

#ifdef __cplusplus
extern "C" {
#endif

#define HOIST_API __attribute__((visibility("default")))

enum {
  HOIST_OK = 0,
  HOIST_CANCELLED = 1,
  HOIST_UNKNOWN = 2,
  HOIST_INVALID_ARGUMENT = 3,    /* Fix the call. */
  HOIST_DEADLINE_EXCEEDED = 4,   /* The deadline that was given has passed. */
  HOIST_NOT_FOUND = 5,           /* No such model, group, tensor, file. */
  HOIST_ALREADY_EXISTS = 6,      /* The name is taken by something else. */
  HOIST_PERMISSION_DENIED = 7,   /* Another user's. */
  HOIST_RESOURCE_EXHAUSTED = 8,  /* Free something, or wait. */
  HOIST_FAILED_PRECONDITION = 9, /* Change state first. */
  HOIST_ABORTED = 10,            /* Lost a race. */
  HOIST_OUT_OF_RANGE = 11,
  HOIST_UNIMPLEMENTED = 12, /* Not in this build or on this device. */
  HOIST_INTERNAL = 13,      /* hoist's bug. */
  HOIST_UNAVAILABLE = 14,   /* No daemon, daemon gone or draining: retry. */
  HOIST_DATA_LOSS = 15,     /* The bytes are not what they were. */
  HOIST_UNAUTHENTICATED = 16
};

typedef struct hoist_error hoist_error;
typedef struct hoist_session hoist_session;
typedef struct hoist_model hoist_model;
typedef struct hoist_lease hoist_lease;

/* --- Errors and versions. --- */

HOIST_API int hoist_error_code(const hoist_error* error);
/* What is wrong, and what would do. */
HOIST_API const char* hoist_error_message(const hoist_error* error);
HOIST_API void hoist_error_free(hoist_error* error); /* NULL is allowed. */
/* "NOT_FOUND"; "UNKNOWN" for a number that is no code. */
HOIST_API const char* hoist_code_name(int code);
/* libhoist's own, "0.1.0". */
HOIST_API const char* hoist_version(void);
/* These headers'. */
#define HOIST_VERSION_MAJOR 0
#define HOIST_VERSION_MINOR 1
#define HOIST_VERSION_PATCH 0

/* --- Sessions. --- */

typedef struct hoist_connect_options {
  size_t struct_size;
  /* NULL or "": $HOIST_SOCKET; else that of this user's own hoistd
   * (`hoistd --user`), if it answers; else /run/hoist/hoistd.sock. */
  const char* socket_path;
  /* Shown by `hoistctl sessions`. NULL: the program's name. */
  const char* client_name;
  /* Bytes this session may have leased at once on a device; 0: no limit. */
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
/* Ends the session: all its leases are released, and their addresses must not
 * be used any more. Calls that wait return HOIST_FAILED_PRECONDITION, as later
 * ones do. The handle is still to be freed. Again: nothing happens. */
HOIST_API void hoist_session_close(hoist_session* session);
/* Closes, if that is still to be done. Leases and models stay valid handles. */
HOIST_API void hoist_session_free(hoist_session* session);
/* HOIST_OK, or why no call can succeed any more: closed, forked, hoistd gone.
 * Does not ask hoistd; its end is noticed as it happens. */
HOIST_API int hoist_session_check(const hoist_session* session,
                                  hoist_error** error);
HOIST_API uint64_t hoist_session_id(const hoist_session* session);
HOIST_API const char* hoist_session_daemon_version(
    const hoist_session* session);

/* --- Devices. --- */

enum { HOIST_DEVICE_EMULATED = 1, HOIST_DEVICE_CUDA = 2 };

typedef struct hoist_device_info {
  size_t struct_size;
  uint32_t index; /* hoistd's number of it, which requests use. */
  int kind;       /* HOIST_DEVICE_EMULATED: addresses are of host memory. */
  const char* name;
  uint8_t uuid[16]; /* CUDA's; made up for emulated devices. */
  uint64_t pool_bytes;
} hoist_device_info;

HOIST_API size_t hoist_session_device_count(const hoist_session* session);
/* The i-th, 0 <= i < count; OUT_OF_RANGE. */
HOIST_API int hoist_session_device(const hoist_session* session, size_t i,
                                   hoist_device_info* info,
                                   hoist_error** error);

/* --- Models: named sets of groups of tensors. --- */

/* How tensors are put into groups. */
enum {
  HOIST_GROUPS_BLOCK = 1,   /* "encoder.layer.3.x.y" -> "encoder.layer.3". */
  HOIST_GROUPS_MODULE = 2,  /* "encoder.layer.3.x.y" -> "encoder.layer.3.x". */
  HOIST_GROUPS_WHOLE = 3,   /* One group, "model". */
  HOIST_GROUPS_EXPLICIT = 4 /* As `groups` says; every tensor once. */
};

enum {
  HOIST_READERS_DEFAULT = 0, /* As hoistd is configured. */
  HOIST_READERS_OWNER = 1,   /* This user. */
  HOIST_READERS_EVERYONE = 2 /* Whoever may open the socket. */
};

typedef struct hoist_group_spec {
  const char* name;
  const char* const* tensors; /* In image order. */
  size_t tensor_count;
} hoist_group_spec;

/* Bytes of a tensor in the files. */
typedef struct hoist_joined_part {
  const char* tensor;
  uint64_t offset_bytes;
  uint64_t size_bytes; /* 0: up to its end. */
} hoist_joined_part;

/* A tensor of the model that the files hold in parts: its bytes are theirs, end
 * to end, and its type theirs. Groups name it, and none of its parts. */
typedef struct hoist_joined_tensor {
  const char* name; /* None that the files have. */
  int rank;
  const int64_t* shape;
  const hoist_joined_part* parts;
  size_t part_count;
} hoist_joined_tensor;

typedef struct hoist_register_options {
  size_t struct_size;
  const char* name;
  /* A safetensors file, or a folder of them: all *.safetensors files if it has
   * a model.safetensors.index.json; else model.safetensors; else all. They are
   * opened here, with this process's rights. */
  const char* path;
  int grouping; /* HOIST_GROUPS_*; 0: HOIST_GROUPS_BLOCK. */
  const hoist_group_spec* groups;
  size_t group_count;
  int readers;
  const hoist_joined_tensor* joined;
  size_t joined_count;
} hoist_register_options;

/* Attaches to the model if it is registered already from the same files: the
 * user's own of that name, or anybody's that everyone may read, whose name may
 * be another. ALREADY_EXISTS: the user has other weights of that name. */
HOIST_API int hoist_register_model(hoist_session* session,
                                   const hoist_register_options* options,
                                   hoist_model** model, hoist_error** error);
/* A model that was registered or published before. "llama" is this user's, or
 * else root's; "1000:llama" is user 1000's, which they say who may read.
 * Weights of such a name are what that user made them: use it if you trust
 * them. */
HOIST_API int hoist_describe_model(hoist_session* session, const char* name,
                                   hoist_model** model, hoist_error** error);

#define HOIST_CONTENT_BYTES 32
/* A published model whose groups have these names, tensors and bytes, whoever
 * published it, under whatever name: this user's, else root's, else one that
 * everyone may read. hoistd has hashed the bytes that it holds itself, so
 * nobody can offer others. `content`: HOIST_CONTENT_BYTES bytes, a SHA-256; of
 * what is said in daemon/model/published_group.h. NOT_FOUND: there is none, or
 * not for this user. */
HOIST_API int hoist_find_content(hoist_session* session, const uint8_t* content,
                                 hoist_model** model, hoist_error** error);
/* Drops a model of this user's, in every tier; its name is free then.
 * FAILED_PRECONDITION: it is in use. PERMISSION_DENIED: it is another user's.
 */
HOIST_API int hoist_forget_model(hoist_session* session,
                                 const hoist_model* model, hoist_error** error);

/* Numbers of safetensors' element types. */
enum {
  HOIST_BOOL = 1,
  HOIST_U8 = 2,
  HOIST_I8 = 3,
  HOIST_U16 = 4,
  HOIST_I16 = 5,
  HOIST_U32 = 6,
  HOIST_I32 = 7,
  HOIST_U64 = 8,
  HOIST_I64 = 9,
  HOIST_F16 = 10,
  HOIST_BF16 = 11,
  HOIST_F32 = 12,
  HOIST_F64 = 13,
  HOIST_C64 = 14,
  HOIST_C128 = 15,
  HOIST_F8_E4M3 = 16,
  HOIST_F8_E5M2 = 17,
  HOIST_F8_E8M0 = 18,
  HOIST_F8_E4M3FNUZ = 19,
  HOIST_F8_E5M2FNUZ = 20,
  HOIST_F6_E2M3 = 21,
  HOIST_F6_E3M2 = 22,
  HOIST_F4 = 23
};

/* "BF16", as safetensors writes it; "?" for a number that is no type. */
HOIST_API const char* hoist_dtype_name(int dtype);
/* Of one element; 4 and 6 for the sub-byte types. 0: no type. */
HOIST_API int hoist_dtype_bits(int dtype);

typedef struct hoist_publish_tensor {
  const char* name;
  int dtype;
  int rank;
  const int64_t* shape;
  const int64_t* strides; /* In elements, none negative; NULL: contiguous. */
  const void* data;       /* Host memory. NULL only if there is no element. */
} hoist_publish_tensor;

typedef struct hoist_publish_options {
  size_t struct_size;
  const char* model;
  const char* group;
  const hoist_publish_tensor* tensors; /* In image order. */
  size_t tensor_count;
  int readers;
  uint64_t deadline_ms; /* To wait for space on the host; 0: 60 s. */
} hoist_publish_options;

/* Adds one group to a published model, which is made if need be; `model`, if
 * not NULL, gets the model as it then is. Tensors with the same data and size
 * are stored once. The bytes are copied before this returns. Only its owner
 * adds to a model. The same group again is attached to; ALREADY_EXISTS: it has
 * other bytes. RESOURCE_EXHAUSTED: no space on the host in time. */
HOIST_API int hoist_publish_group(hoist_session* session,
                                  const hoist_publish_options* options,
                                  hoist_model** model, hoist_error** error);

HOIST_API void hoist_model_free(hoist_model* model);
HOIST_API uint64_t hoist_model_id(const hoist_model* model);
HOIST_API const char* hoist_model_name(const hoist_model* model);
/* 16 bytes: what the weights are. */
HOIST_API const uint8_t* hoist_model_fingerprint(const hoist_model* model);
/* The uid whose model it is, and who may read it (HOIST_READERS_*). */
HOIST_API uint32_t hoist_model_owner(const hoist_model* model);
/* The tenant (hoistd.toml) whose model it is, the uid then being UINT32_MAX;
 * "" if it is a uid's. */
HOIST_API const char* hoist_model_owner_tenant(const hoist_model* model);
HOIST_API int hoist_model_readers(const hoist_model* model);
HOIST_API uint64_t hoist_model_image_bytes(const hoist_model* model);
HOIST_API int hoist_model_is_published(const hoist_model* model);
HOIST_API uint32_t hoist_model_group_count(const hoist_model* model);

typedef struct hoist_group_info {
  size_t struct_size;
  const char* name;
  uint64_t image_bytes;
  uint32_t tensor_count;
} hoist_group_info;

typedef struct hoist_tensor_info {
  size_t struct_size;
  const char* name;
  int dtype;
  int rank;
  const int64_t* shape;
  const int64_t* strides; /* In elements; always given. */
  uint64_t offset_bytes;  /* From the image's start. */
  uint64_t size_bytes;    /* That the elements span. */
  /* Of the first element, on the lease's device; NULL if asked of a model. */
  const void* data;
} hoist_tensor_info;

HOIST_API int hoist_model_group(const hoist_model* model, uint32_t group,
                                hoist_group_info* info, hoist_error** error);
HOIST_API int hoist_model_tensor(const hoist_model* model, uint32_t group,
                                 uint32_t tensor, hoist_tensor_info* info,
                                 hoist_error** error);
HOIST_API int hoist_model_find_group(const hoist_model* model, const char* name,
                                     uint32_t* group, hoist_error** error);
/* Which group holds the tensor, and where in the group. */
HOIST_API int hoist_model_find_tensor(const hoist_model* model,
                                      const char* name, uint32_t* group,
                                      uint32_t* tensor, hoist_error** error);

/* --- Staging. --- */

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
HOIST_API uint64_t hoist_lease_bytes(const hoist_lease* lease);
HOIST_API uint64_t hoist_lease_id(const hoist_lease* lease);
HOIST_API uint32_t hoist_lease_group(const hoist_lease* lease);
HOIST_API uint32_t hoist_lease_device(const hoist_lease* lease);
HOIST_API int hoist_lease_device_kind(const hoist_lease* lease);
/* 1: nothing had to be copied for it. */
HOIST_API int hoist_lease_was_resident(const hoist_lease* lease);
HOIST_API uint32_t hoist_lease_tensor_count(const hoist_lease* lease);
HOIST_API int hoist_lease_tensor(const hoist_lease* lease, uint32_t tensor,
                                 hoist_tensor_info* info, hoist_error** error);
HOIST_API int hoist_lease_find_tensor(const hoist_lease* lease,
                                      const char* name, hoist_tensor_info* info,
                                      hoist_error** error);

enum { HOIST_TIER_DEVICE = 1, HOIST_TIER_HOST = 2 };

/* Asks for groups to be brought to a tier, in order of first need. Returns when
 * they are queued. `device` is looked at for HOIST_TIER_DEVICE only. */
HOIST_API int hoist_prefetch(hoist_session* session, const hoist_model* model,
                             const uint32_t* groups, size_t group_count,
                             int tier, uint32_t device, hoist_error** error);
/* The order in which this session will stage the model's groups, over and over;
 * empty: no order. */
HOIST_API int hoist_set_order(hoist_session* session, const hoist_model* model,
                              const uint32_t* groups, size_t group_count,
                              hoist_error** error);

/* --- Host images: a group's bytes where this process's CPUs can read them.
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
HOIST_API uint64_t hoist_host_image_bytes(const hoist_host_image* image);
/* Drops, and ends the reservation. NULL is allowed. */
HOIST_API void hoist_host_image_free(hoist_host_image* image);

/* --- Plans: layer after layer at the speed of the link. ---
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
 * keeps to a form that graphs can repeat: launches of one plan's graphs must
 *           not overlap, and each repeats the order that it was captured with.
 *           Groups outside the plan cannot be captured. A graph is void once
 *           the plan is freed or made anew.
 * Death:    if hoistd, the session or the plan ends, waits of streams are let
 *           through rather than left to hang, and what was computed since is
 *           void: calls return the reason. Ask hoist_plan_check after
 *           synchronizing, before results are used.
 * Fork:     in the child every call answers HOIST_FAILED_PRECONDITION. */

typedef struct hoist_plan hoist_plan;

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
 * `stream` is a CUstream of the device's primary context (NULL: the default
 * stream); on an emulated device it is ignored, and the call returns when the
 * bytes are there. `data`, unless NULL, gets the image's address; NULL if it is
 * empty. A resident that is still on its way, and a group outside the plan, are
 * waited for on the CPU. FAILED_PRECONDITION: a group that shares its place is
 * staged and not done, or the stream is being captured and the group cannot be.
 * Staging a group again before it is done counts: as many dones end it. */
HOIST_API int hoist_plan_stage(hoist_plan* plan, uint32_t group, void* stream,
                               const void** data, hoist_error** error);
/* What is on `stream` by now is the last that reads the group's image.
 * FAILED_PRECONDITION: it is not staged. A group outside the plan is ended by
 * waiting for the stream on the CPU. */
HOIST_API int hoist_plan_done(hoist_plan* plan, uint32_t group, void* stream,
                              hoist_error** error);
/* HOIST_OK while what is computed under the plan may be trusted. Cheap, and no
 * message; notices the end as it happens. */
HOIST_API int hoist_plan_check(hoist_plan* plan, hoist_error** error);

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
} hoist_plan_info;

HOIST_API int hoist_plan_describe(const hoist_plan* plan, hoist_plan_info* info,
                                  hoist_error** error);

enum {
  HOIST_PLANNED_RESIDENT = 1, /* And groups that are empty. */
  HOIST_PLANNED_STREAMED = 2,
  HOIST_PLANNED_NOT = 3 /* Not in the order: staged by message. */
};

/* HOIST_PLANNED_*. OUT_OF_RANGE: the model has no such group. */
HOIST_API int hoist_plan_group_kind(const hoist_plan* plan, uint32_t group,
                                    int* kind, hoist_error** error);
/* A tensor of a planned group, with the address that it has whenever the group
 * is staged. Waits for a resident that is still on its way.
 * FAILED_PRECONDITION: the group is not in the plan. */
HOIST_API int hoist_plan_tensor(hoist_plan* plan, uint32_t group,
                                uint32_t tensor, hoist_tensor_info* info,
                                hoist_error** error);

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

HOIST_API int hoist_plan_get_stats(const hoist_plan* plan,
                                   hoist_plan_stats* stats,
                                   hoist_error** error);

#ifdef __cplusplus
}
#endif

#endif /* HOIST_HOIST_C_H_ */
