// The C API's errors, sessions and devices.
#include <cerrno>
#include <utility>

#include "client/src/c_handles.h"
#include "client/src/patience.h"

namespace hoist {
namespace {

// Given where there is no memory left for an error of its own; never freed.
hoist_error* OutOfMemory() noexcept {
  static hoist_error error = {HOIST_RESOURCE_EXHAUSTED, "out of memory"};
  return &error;
}

std::string TextOr(const char* text, const char* otherwise) {
  return text != nullptr && *text != '\0' ? text : otherwise;
}

}  // namespace

int FinishOutOfMemory(hoist_error** error) noexcept {
  if (error != nullptr) *error = OutOfMemory();
  return HOIST_RESOURCE_EXHAUSTED;
}

int Finish(const Status& status, hoist_error** error) noexcept {
  if (status.ok()) return HOIST_OK;
  const int code = static_cast<int>(status.code());
  if (error == nullptr) return code;
  try {
    *error = new hoist_error{code, status.message()};
    return code;
  } catch (const std::bad_alloc&) {
    return FinishOutOfMemory(error);
  }
}

Status CheckShare(uint32_t weight, int32_t priority) {
  constexpr uint32_t kMaxWeight = 1000;
  constexpr int32_t kMaxPriority = 10;
  if (weight > kMaxWeight) {
    return Status(Code::kInvalidArgument, "weight " + std::to_string(weight) +
                                              " is not between 1 and 1000");
  }
  if (priority < -kMaxPriority || priority > kMaxPriority) {
    return Status(
        Code::kInvalidArgument,
        "priority " + std::to_string(priority) + " is not between -10 and 10");
  }
  return Status();
}

Status CheckBoth(const hoist_session* session, const hoist_model* model) {
  if (session == nullptr) return Missing("session");
  if (model == nullptr) return Missing("model");
  if (Status s = session->session->Check(); !s.ok()) return s;
  if (session->session->instance_id() == model->instance_id) return Status();
  return Status(Code::kFailedPrecondition,
                "model \"" + model->table->facts().name +
                    "\" is of another hoistd than this session, perhaps of one "
                    "that has ended; ask this session for its own");
}

}  // namespace hoist

using hoist::Code;
using hoist::Guarded;
using hoist::Status;

int hoist_error_code(const hoist_error* error) {
  return error == nullptr ? HOIST_OK : error->code;
}

const char* hoist_error_message(const hoist_error* error) {
  return error == nullptr ? "" : error->message.c_str();
}

void hoist_error_free(hoist_error* error) {
  if (error != hoist::OutOfMemory()) delete error;
}

const char* hoist_code_name(int code) {
  static constexpr const char* kNames[] = {"OK",
                                           "CANCELLED",
                                           "UNKNOWN",
                                           "INVALID_ARGUMENT",
                                           "DEADLINE_EXCEEDED",
                                           "NOT_FOUND",
                                           "ALREADY_EXISTS",
                                           "PERMISSION_DENIED",
                                           "RESOURCE_EXHAUSTED",
                                           "FAILED_PRECONDITION",
                                           "ABORTED",
                                           "OUT_OF_RANGE",
                                           "UNIMPLEMENTED",
                                           "INTERNAL",
                                           "UNAVAILABLE",
                                           "DATA_LOSS",
                                           "UNAUTHENTICATED"};
  constexpr int kCount = sizeof(kNames) / sizeof(kNames[0]);
  return kNames[code < 0 || code >= kCount ? HOIST_UNKNOWN : code];
}

const char* hoist_version() { return HOIST_VERSION; }

uint64_t hoist_set_patience(uint64_t milliseconds) {
  return static_cast<uint64_t>(
      hoist::SetPatience(hoist::Milliseconds(milliseconds)).count());
}

int hoist_connect(const hoist_connect_options* options, hoist_session** session,
                  hoist_error** error) {
  return Guarded(error, [&]() -> Status {
    if (session == nullptr) return hoist::Missing("session");
    hoist_connect_options given = {};
    if (options != nullptr && !hoist::ReadSized(options, &given)) {
      return Status(Code::kInvalidArgument,
                    "set struct_size to sizeof(hoist_connect_options)");
    }
    hoist::ConnectOptions wanted;
    wanted.socket_path = hoist::TextOr(given.socket_path, "");
    wanted.client_name =
        hoist::TextOr(given.client_name, program_invocation_short_name);
    wanted.device_budget_bytes = given.device_budget_bytes;
    wanted.connect_deadline = hoist::Milliseconds(given.connect_deadline_ms);
    if (given.call_deadline_ms != 0) {
      wanted.call_deadline = hoist::Milliseconds(given.call_deadline_ms);
    }
    auto connected = hoist::Session::Connect(wanted);
    if (!connected.ok()) return connected.status();
    std::shared_ptr<hoist::Session> made = std::move(connected).value();
    std::shared_ptr<void> open(nullptr, [made](void*) { made->Close(); });
    *session = new hoist_session{std::move(made), std::move(open)};
    return Status();
  });
}

int hoist_session_share(const hoist_session* session, hoist_session** shared,
                        hoist_error** error) {
  return Guarded(error, [&]() -> Status {
    if (session == nullptr) return hoist::Missing("session");
    if (shared == nullptr) return hoist::Missing("shared");
    if (Status s = session->session->Check(); !s.ok()) return s;
    *shared = new hoist_session(*session);
    return Status();
  });
}

void hoist_session_close(hoist_session* session) {
  if (session == nullptr || session->session->forked()) return;
  session->session->Close();
}

// In the child of a fork the handle is left alone: the few bytes that it leaks
// there have locks in them that nobody may ever unlock.
void hoist_session_free(hoist_session* session) {
  if (session == nullptr || session->session->forked()) return;
  delete session;
}

int hoist_session_check(const hoist_session* session, hoist_error** error) {
  return Guarded(error, [&]() -> Status {
    if (session == nullptr) return hoist::Missing("session");
    return session->session->Check();
  });
}

uint64_t hoist_session_id(const hoist_session* session) {
  return session == nullptr ? 0 : session->session->id();
}

const char* hoist_session_daemon_version(const hoist_session* session) {
  return session == nullptr ? "" : session->session->daemon_version().c_str();
}

size_t hoist_session_device_count(const hoist_session* session) {
  return session == nullptr ? 0 : session->session->devices().size();
}

int hoist_session_device(const hoist_session* session, size_t i,
                         hoist_device_info* info, hoist_error** error) {
  return Guarded(error, [&]() -> Status {
    if (session == nullptr) return hoist::Missing("session");
    if (info == nullptr) return hoist::Missing("info");
    const auto& devices = session->session->devices();
    if (i >= devices.size()) {
      return Status(
          Code::kOutOfRange,
          "this node has " + std::to_string(devices.size()) + " devices");
    }
    hoist_device_info out = {};
    out.index = devices[i].index;
    out.kind = static_cast<int>(devices[i].kind);
    out.name = devices[i].name.c_str();
    std::copy(devices[i].uuid.begin(), devices[i].uuid.end(), out.uuid);
    out.pool_bytes = devices[i].pool_bytes;
    return hoist::WriteSized(out, info);
  });
}
