// The C API's copiers.
#include <memory>
#include <utility>

#include "client/src/c_handles.h"
#include "client/src/copier.h"
#include "client/src/fork_guard.h"

struct hoist_copier {
  std::shared_ptr<void> open;  // As a session's handle has it.
  std::unique_ptr<hoist::Copier> copier;
};

namespace hoist {
namespace {

static_assert(HOIST_COPIER_PIECE_BYTES == copier::kPieceBytes);

Result<OpenCopierRequest> RequestOf(const Session& session,
                                    const hoist_copier_options& given) {
  if (session.FindDevice(given.device) == nullptr) {
    return Status(Code::kNotFound,
                  "hoistd has no device " + std::to_string(given.device) +
                      "; it has " + std::to_string(session.devices().size()));
  }
  if (Status s = CheckShare(given.weight, given.priority); !s.ok()) return s;
  OpenCopierRequest request;
  request.device = given.device;
  request.weight = given.weight;
  request.priority = given.priority;
  request.max_bytes_per_second = given.max_bytes_per_second;
  return request;
}

cuda::Stream StreamOf(hoist_stream stream) {
  return reinterpret_cast<cuda::Stream>(stream);
}

}  // namespace
}  // namespace hoist

using hoist::Copier;
using hoist::Guarded;
using hoist::Missing;
using hoist::Status;
using hoist::StreamOf;

int hoist_copier_open(hoist_session* session,
                      const hoist_copier_options* options,
                      hoist_copier** copier, hoist_error** error) {
  return Guarded(error, [&]() -> Status {
    if (session == nullptr) return Missing("session");
    if (copier == nullptr) return Missing("copier");
    if (Status s = session->session->Check(); !s.ok()) return s;
    hoist_copier_options given = {};
    if (options != nullptr && !hoist::ReadSized(options, &given)) {
      return Status(hoist::Code::kInvalidArgument,
                    "set struct_size to sizeof(hoist_copier_options)");
    }
    auto request = hoist::RequestOf(*session->session, given);
    if (!request.ok()) return request.status();
    auto handle = std::make_unique<hoist_copier>();
    auto opened = Copier::Open(session->session, *request);
    if (!opened.ok()) return opened.status();
    handle->open = session->open;
    handle->copier = std::move(opened).value();
    *copier = handle.release();
    return Status();
  });
}

int hoist_copier_to_device(hoist_copier* copier, void* to, const void* from,
                           uint64_t bytes, hoist_stream stream,
                           hoist_error** error) {
  return Guarded(error, [&]() -> Status {
    if (copier == nullptr) return Missing("copier");
    if (to == nullptr && bytes > 0) return Missing("to");
    if (from == nullptr && bytes > 0) return Missing("from");
    return copier->copier->ToDevice(to, from, bytes, StreamOf(stream));
  });
}

int hoist_copier_to_host(hoist_copier* copier, void* to, const void* from,
                         uint64_t bytes, hoist_stream stream,
                         hoist_error** error) {
  return Guarded(error, [&]() -> Status {
    if (copier == nullptr) return Missing("copier");
    if (to == nullptr && bytes > 0) return Missing("to");
    if (from == nullptr && bytes > 0) return Missing("from");
    return copier->copier->ToHost(to, from, bytes, StreamOf(stream));
  });
}

int hoist_copier_begin(hoist_copier* copier, uint64_t bytes,
                       hoist_stream stream, hoist_error** error) {
  return Guarded(error, [&]() -> Status {
    if (copier == nullptr) return Missing("copier");
    return copier->copier->Begin(bytes, StreamOf(stream));
  });
}

int hoist_copier_end(hoist_copier* copier, uint64_t bytes, hoist_stream stream,
                     hoist_error** error) {
  return Guarded(error, [&]() -> Status {
    if (copier == nullptr) return Missing("copier");
    return copier->copier->End(bytes, StreamOf(stream));
  });
}

int hoist_copier_add_to_host(hoist_copier* copier, uint64_t bytes,
                             hoist_error** error) {
  return Guarded(error, [&]() -> Status {
    if (copier == nullptr) return Missing("copier");
    if (copier->copier->forked()) return hoist::ForkedStatus();
    copier->copier->AddToHost(bytes);
    return Status();
  });
}

int hoist_copier_get_stats(const hoist_copier* copier,
                           hoist_copier_stats* stats, hoist_error** error) {
  return Guarded(error, [&]() -> Status {
    if (copier == nullptr) return Missing("copier");
    if (stats == nullptr) return Missing("stats");
    if (copier->copier->forked()) return hoist::ForkedStatus();
    const Copier::Stats counted = copier->copier->stats();
    hoist_copier_stats out = {};
    out.granted_bytes = counted.granted_bytes;
    out.ungranted_bytes = counted.ungranted_bytes;
    out.to_host_bytes = counted.to_host_bytes;
    out.wake_ups = counted.wake_ups;
    out.grants = counted.grants ? 1 : 0;
    return hoist::WriteSized(out, stats);
  });
}

// In the child of a fork the copier is the parent's; see hoist_session_free.
void hoist_copier_free(hoist_copier* copier) {
  if (copier == nullptr || copier->copier->forked()) return;
  (void)Guarded(nullptr, [copier] {
    delete copier;
    return Status();
  });
}
