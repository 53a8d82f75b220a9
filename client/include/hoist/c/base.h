/* hoist_c.h: errors, versions, and the types of handles. */
#ifndef HOIST_C_BASE_H_
#define HOIST_C_BASE_H_

#include <stddef.h>
#include <stdint.h>

#ifdef __cplusplus
extern "C" {
#endif

/* Exported by libhoist. */
#define HOIST_API __attribute__((visibility("default")))

/* Return codes of calls: gRPC's. */
enum {
  HOIST_OK = 0,                  /* Done. */
  HOIST_CANCELLED = 1,           /* Called off. */
  HOIST_UNKNOWN = 2,             /* An unknown code. */
  HOIST_INVALID_ARGUMENT = 3,    /* Fix the call. */
  HOIST_DEADLINE_EXCEEDED = 4,   /* The given deadline has passed. */
  HOIST_NOT_FOUND = 5,           /* No such model, group, tensor, file. */
  HOIST_ALREADY_EXISTS = 6,      /* The name is taken by something else. */
  HOIST_PERMISSION_DENIED = 7,   /* Another user's. */
  HOIST_RESOURCE_EXHAUSTED = 8,  /* Free something, or wait. */
  HOIST_FAILED_PRECONDITION = 9, /* Change state first. */
  HOIST_ABORTED = 10,            /* Lost a race. */
  HOIST_OUT_OF_RANGE = 11,       /* No element of that number. */
  HOIST_UNIMPLEMENTED = 12,      /* Not in this build or on this device. */
  HOIST_INTERNAL = 13,           /* hoist's bug. */
  HOIST_UNAVAILABLE = 14,    /* No daemon, daemon gone or draining: retry. */
  HOIST_DATA_LOSS = 15,      /* The bytes have changed. */
  HOIST_UNAUTHENTICATED = 16 /* The caller is unknown. */
};

/* Why a call failed; freed by hoist_error_free. */
typedef struct hoist_error hoist_error;
/* A connection with hoistd; freed by hoist_session_free. */
typedef struct hoist_session hoist_session;
/* A model's description, as plain data; freed by hoist_model_free. */
typedef struct hoist_model hoist_model;
/* The right to read a group's image; freed by hoist_lease_free. */
typedef struct hoist_lease hoist_lease;

/* --- Errors and versions. --- */

/* The call's return code (HOIST_NOT_FOUND). */
HOIST_API int hoist_error_code(const hoist_error* error);
/* The problem, and the remedy. */
HOIST_API const char* hoist_error_message(const hoist_error* error);
/* NULL is allowed. */
HOIST_API void hoist_error_free(hoist_error* error);
/* "NOT_FOUND"; "UNKNOWN" for a number that is no code. */
HOIST_API const char* hoist_code_name(int code);
/* libhoist's own, "0.1.0". */
HOIST_API const char* hoist_version(void);
#define HOIST_VERSION_MAJOR 0 /* These headers'. */
#define HOIST_VERSION_MINOR 1 /* These headers'. */
#define HOIST_VERSION_PATCH 0 /* These headers'. */

#ifdef __cplusplus
}
#endif

#endif /* HOIST_C_BASE_H_ */
