// The C API's permits.
#include "client/src/permit/copy_permit.h"

#include <memory>

#include "client/src/c_api/handles.h"

struct hoist_copy_permit {
  std::shared_ptr<void> open;  // As a session's handle has it.
  std::unique_ptr<hoist::CopyPermit> own;
};

static_assert(HOIST_COPY_PERMIT_PIECE_BYTES == hoist::permit::kPieceBytes);

using hoist::CopyPermit;
using hoist::Missing;
using hoist::Status;
using hoist::StreamOf;
using hoist::With;

int hoist_copy_permit_open(hoist_session* session,
                           const hoist_copy_permit_options* options,
                           hoist_copy_permit** permit, hoist_error** error) {
  return hoist::Guarded(
      error, {{session, "session"}, {permit, "permit"}}, [&]() -> Status {
        hoist::Session& on = *session->session;
        if (Status s = on.Check(); !s.ok()) return s;
        hoist_copy_permit_options given = {};
        Status s =
            hoist::ReadSized(options, "hoist_copy_permit_options", &given);
        if (!s.ok()) return s;
        if (s = hoist::CheckOptions(on, given); !s.ok()) return s;
        return hoist::Hand(permit, CopyPermit::Open(session->session, given),
                           session->open);
      });
}

int hoist_copy_permit_to_device(hoist_copy_permit* permit, void* to,
                                const void* from, uint64_t bytes,
                                hoist_stream stream, hoist_error** error) {
  return With(permit, "permit", error, {}, [&](CopyPermit& own) -> Status {
    if (to == nullptr && bytes > 0) return Missing("to");
    if (from == nullptr && bytes > 0) return Missing("from");
    return own.ToDevice(to, from, bytes, StreamOf(stream));
  });
}

int hoist_copy_permit_to_host(hoist_copy_permit* permit, void* to,
                              const void* from, uint64_t bytes,
                              hoist_stream stream, hoist_error** error) {
  return With(permit, "permit", error, {}, [&](CopyPermit& own) -> Status {
    if (to == nullptr && bytes > 0) return Missing("to");
    if (from == nullptr && bytes > 0) return Missing("from");
    return own.ToHost(to, from, bytes, StreamOf(stream));
  });
}

int hoist_copy_permit_begin(hoist_copy_permit* permit, uint64_t bytes,
                            hoist_stream stream, hoist_error** error) {
  return With(permit, "permit", error, {}, [&](CopyPermit& own) {
    return own.Begin(bytes, StreamOf(stream));
  });
}

int hoist_copy_permit_end(hoist_copy_permit* permit, uint64_t bytes,
                          hoist_stream stream, hoist_error** error) {
  return With(permit, "permit", error, {}, [&](CopyPermit& own) {
    return own.End(bytes, StreamOf(stream));
  });
}

int hoist_copy_permit_add_to_host(hoist_copy_permit* permit, uint64_t bytes,
                                  hoist_error** error) {
  return With(permit, "permit", error, {}, [&](CopyPermit& own) {
    own.AddToHost(bytes);
    return Status();
  });
}

int hoist_copy_permit_get_stats(const hoist_copy_permit* permit,
                                hoist_copy_permit_stats* stats,
                                hoist_error** error) {
  return With(permit, "permit", error, {{stats, "stats"}},
              [&](const CopyPermit& own) {
                return hoist::WriteSized(own.stats(), stats);
              });
}

void hoist_copy_permit_free(hoist_copy_permit* permit) { hoist::Free(permit); }
