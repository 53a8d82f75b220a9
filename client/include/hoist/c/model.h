/* hoist_c.h: models, named sets of groups of tensors. */
#ifndef HOIST_C_MODEL_H_
#define HOIST_C_MODEL_H_

#include "hoist/c/base.h"

#ifdef __cplusplus
extern "C" {
#endif

/* How tensors are grouped. */
enum {
  HOIST_GROUPS_BLOCK = 1,   /* "encoder.layer.3.x.y" -> "encoder.layer.3". */
  HOIST_GROUPS_MODULE = 2,  /* "encoder.layer.3.x.y" -> "encoder.layer.3.x". */
  HOIST_GROUPS_WHOLE = 3,   /* One group, "model". */
  HOIST_GROUPS_EXPLICIT = 4 /* As `groups` says; every tensor once. */
};

/* Who may read a model. */
enum {
  HOIST_READERS_DEFAULT = 0, /* As hoistd is configured. */
  HOIST_READERS_OWNER = 1,   /* This user. */
  HOIST_READERS_EVERYONE = 2 /* All who may open the socket. */
};

/* A group of HOIST_GROUPS_EXPLICIT. */
typedef struct hoist_group_spec {
  const char* name;
  const char* const* tensors; /* In image order. */
  size_t tensor_count;
} hoist_group_spec;

/* Bytes of a tensor in the files: one run, or several of equal length, such as
 * a worker's columns of a matrix. */
typedef struct hoist_joined_part {
  const char* tensor;
  uint64_t offset_bytes; /* Of the first run. */
  uint64_t size_bytes;   /* Of each run. 0, for one run: to the tensor's end. */
  uint64_t count;        /* Runs; 0: one. */
  uint64_t stride_bytes; /* From a run's first byte to the next one's. */
} hoist_joined_part;

/* A tensor of the model that the files hold in parts: the parts' bytes, end to
 * end, and their type. Groups name it, and none of its parts. */
typedef struct hoist_joined_tensor {
  const char* name; /* Not a name in the files. */
  int rank;
  const int64_t* shape;
  const hoist_joined_part* parts;
  size_t part_count;
} hoist_joined_tensor;

/* Options of hoist_register_model. */
typedef struct hoist_register_options {
  size_t struct_size;
  const char* name;
  /* A safetensors or GGUF file, or a folder of them: all *.safetensors files if
   * it has a model.safetensors.index.json; else model.safetensors; else all; if
   * it has none, all *.gguf files. One part of a GGUF set
   * ("m-00001-of-00003.gguf") stands for all. They are opened here, with this
   * process's rights. */
  const char* path;
  int grouping; /* HOIST_GROUPS_*; 0: HOIST_GROUPS_BLOCK. */
  const hoist_group_spec* groups;
  size_t group_count;
  int readers;
  const hoist_joined_tensor* joined;
  size_t joined_count;
} hoist_register_options;

/* Registers a model, or attaches to one registered from the same files: the
 * user's own of that name, or another user's, of any name, that everyone may
 * read. ALREADY_EXISTS: the user has other weights of that name. */
HOIST_API int hoist_register_model(hoist_session* session,
                                   const hoist_register_options* options,
                                   hoist_model** model, hoist_error** error);
/* Finds a registered or published model. "llama" is this user's, or else
 * root's; "1000:llama" is user 1000's, who decides who may read it. That user
 * also decides its weights: use such a name only if you trust the user.
 * DATA_LOSS: groups of it were lost when hoistd started. */
HOIST_API int hoist_describe_model(hoist_session* session, const char* name,
                                   hoist_model** model, hoist_error** error);

#define HOIST_CONTENT_BYTES 32 /* Of hoist_find_content. */
/* Finds a published model by its groups' names, tensors and bytes, under any
 * name: this user's, else root's, else one that everyone may read. hoistd
 * hashed the bytes itself, so no publisher can pass off others. `content`:
 * HOIST_CONTENT_BYTES bytes, a SHA-256; see daemon/model/published_group.h.
 * NOT_FOUND: there is none, or this user may not read it. */
HOIST_API int hoist_find_content(hoist_session* session, const uint8_t* content,
                                 hoist_model** model, hoist_error** error);
/* Drops a model of this user from every tier, and frees its name.
 * FAILED_PRECONDITION: it is in use. PERMISSION_DENIED: it is another
 * user's. */
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
/* Bits of one element; 4 and 6 for the sub-byte types. 0: no type. */
HOIST_API int hoist_dtype_bits(int dtype);

/* A tensor to publish. */
typedef struct hoist_publish_tensor {
  const char* name;
  int dtype;
  int rank;
  const int64_t* shape;
  const int64_t* strides; /* In elements, none negative; NULL: contiguous. */
  /* In host memory, or see on_device. NULL only if it has no elements. */
  const void* data;
} hoist_publish_tensor;

/* Options of hoist_publish_group. */
typedef struct hoist_publish_options {
  size_t struct_size;
  const char* model;
  const char* group;
  const hoist_publish_tensor* tensors; /* In image order. */
  size_t tensor_count;
  int readers;
  uint64_t deadline_ms; /* To wait for space on the host; 0: 60 s. */
  /* 1: the tensors' data are in memory of hoistd's device number `device`, in
   * its primary context in this process, and their writes have finished. */
  int on_device;
  uint32_t device;
  /* 1: the model ends with the session, for any reason, and only its user may
   * use it. Its name is "@42/MODEL", where 42 is the session's number. */
  int of_session;
  /* The group's expected content, HOIST_CONTENT_BYTES bytes as in
   * hoist_group_info; NULL: any. */
  const uint8_t* content;
  /* With on_device: a byte for each tensor, 1 if its data are in host memory
   * after all; NULL: none are. */
  const uint8_t* host_tensors;
} hoist_publish_options;

/* Adds one group to a published model, and creates the model if it is new.
 * `model`, if not NULL, gets the resulting model. Its handle has this group;
 * hoistd is asked for the others, in their present state, and the fingerprint
 * once they are needed. A session that has ended, or is done with the model,
 * asks no more (FAILED_PRECONDITION). Tensors with the same data and size are
 * stored once. The bytes are copied before this returns. Only its owner adds to
 * a model. A group that is there already is attached to. ALREADY_EXISTS: it has
 * other bytes. RESOURCE_EXHAUSTED: no space on the host in time. DATA_LOSS: the
 * bytes do not match `content`; hoistd kept nothing. */
HOIST_API int hoist_publish_group(hoist_session* session,
                                  const hoist_publish_options* options,
                                  hoist_model** model, hoist_error** error);

/* The content that hoistd finds in such a group, which may be published or not.
 * Of `options`, only the group's name and the tensors matter. `content` gets
 * HOIST_CONTENT_BYTES bytes. Up to 16 threads read large tensors at once.
 * INVALID_ARGUMENT: as for hoist_publish_group, or the tensors are on a
 * device. */
HOIST_API int hoist_group_content(const hoist_publish_options* options,
                                  uint8_t* content, hoist_error** error);
/* The content of a model of groups with these contents, HOIST_CONTENT_BYTES
 * bytes each, end to end, in any order. */
HOIST_API int hoist_model_content(const uint8_t* groups, size_t group_count,
                                  uint8_t* content, hoist_error** error);

/* A session uses a model from its first request for it (register, describe,
 * publish, find_content, prefetch, an order) until it is done with it, or ends.
 * Models that no session uses are the first eviction victims; hoistd then
 * forgets published ones.
 *
 * This call ends the use by this handle, which can still be read. The session
 * is done when no other handle, lease, plan, host image or fetch of it holds
 * the model. hoist_model_free alone does not end the use: a publisher need not
 * keep a handle. */
HOIST_API int hoist_done_with_model(hoist_session* session,
                                    const hoist_model* model,
                                    hoist_error** error);
/* As hoist_done_with_model. hoistd also drops the model once nothing uses it,
 * unless a session asks for it before: for what a failed call has made. Only a
 * model of this user that no admin has pinned; otherwise the use ends alone. */
HOIST_API int hoist_forget_unused_model(hoist_session* session,
                                        const hoist_model* model,
                                        hoist_error** error);
/* NULL is allowed. The session still uses the model. */
HOIST_API void hoist_model_free(hoist_model* model);
/* hoistd's number of it. */
HOIST_API uint64_t hoist_model_id(const hoist_model* model);
/* Its name, without its owner's. */
HOIST_API const char* hoist_model_name(const hoist_model* model);
/* 16 bytes, the digest of the weights. Zeros: hoistd was to be asked for it and
 * did not answer (see hoist_publish_group). */
HOIST_API const uint8_t* hoist_model_fingerprint(const hoist_model* model);
/* The owner's uid. */
HOIST_API uint32_t hoist_model_owner(const hoist_model* model);
/* The owning tenant (hoistd.toml), with the uid UINT32_MAX; "" if a uid owns
 * it. */
HOIST_API const char* hoist_model_owner_tenant(const hoist_model* model);
/* Who may read it (HOIST_READERS_*). */
HOIST_API int hoist_model_readers(const hoist_model* model);
/* The sum over all groups. */
HOIST_API uint64_t hoist_model_image_bytes(const hoist_model* model);
/* 1: published; 0: read from files. */
HOIST_API int hoist_model_is_published(const hoist_model* model);
/* The number of groups; numbers start at 0. A group without a name and tensors
 * is missing: no disk had it when hoistd ended. Only hoist_publish_group, which
 * fills such gaps, returns a model that lacks groups; hoistd then describes
 * none of its others (DATA_LOSS). */
HOIST_API uint32_t hoist_model_group_count(const hoist_model* model);

/* Result of hoist_model_group. */
typedef struct hoist_group_info {
  size_t struct_size;
  const char* name;
  uint64_t image_bytes;
  uint32_t tensor_count;
  /* A published group's SHA-256, HOIST_CONTENT_BYTES bytes, as computed by
   * hoistd (daemon/model/published_group.h). NULL: the group is read from
   * files, or hoistd is older than this field. */
  const uint8_t* content;
} hoist_group_info;

/* A tensor of a model, a lease or a plan. */
typedef struct hoist_tensor_info {
  size_t struct_size;
  const char* name;
  int dtype;
  int rank;
  const int64_t* shape;
  const int64_t* strides; /* In elements; always given. */
  uint64_t offset_bytes;  /* From the image's start. */
  uint64_t size_bytes;    /* Span of the elements. */
  /* The first element, on the lease's device; NULL in a model's tensor. */
  const void* data;
  /* Of a U8 tensor from a GGUF file: ggml's type of its packed blocks,
   * "Q4_K". "": it has none. NULL: libhoist is older. */
  const char* block_type;
} hoist_tensor_info;

/* OUT_OF_RANGE: the model has no such group. */
HOIST_API int hoist_model_group(const hoist_model* model, uint32_t group,
                                hoist_group_info* info, hoist_error** error);
/* By number, in image order. OUT_OF_RANGE: no such group, or tensor. */
HOIST_API int hoist_model_tensor(const hoist_model* model, uint32_t group,
                                 uint32_t tensor, hoist_tensor_info* info,
                                 hoist_error** error);
/* The numbers of the groups of these names. NOT_FOUND: there is none of one.
 * None of none: only asks hoistd for what the handle lacks, if anything. */
HOIST_API int hoist_model_find_groups(const hoist_model* model,
                                      const char* const* names, size_t count,
                                      uint32_t* groups, hoist_error** error);
/* Finds a tensor's group, and its number there. NOT_FOUND: none has it. */
HOIST_API int hoist_model_find_tensor(const hoist_model* model,
                                      const char* name, uint32_t* group,
                                      uint32_t* tensor, hoist_error** error);

#ifdef __cplusplus
}
#endif

#endif /* HOIST_C_MODEL_H_ */
