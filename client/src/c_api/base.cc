// The C API's errors, sessions and devices.
#include <cerrno>
#include <optional>
#include <string>
#include <utility>

#include "client/src/base/patience.h"
#include "client/src/c_api/handles.h"

namespace hoist {
namespace {

// The error when there is no memory for a new one; never freed.
hoist_error* OutOfMemory() noexcept {
  static hoist_error error = {HOIST_RESOURCE_EXHAUSTED, "out of memory"};
  return &error;
}

constexpr uint64_t kCallDeadlineMs = 600'000;

const char* TextOr(const char* text, const char* otherwise) {
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

Status ReadConnect(const hoist_connect_options* options,
                   hoist_connect_options* given) {
  Status s = ReadSized(options, "hoist_connect_options", given);
  if (!s.ok()) return s;
  given->socket_path = TextOr(given->socket_path, "");
  given->client_name =
      TextOr(given->client_name, program_invocation_short_name);
  given->connect_deadline_ms = AtMostADay(given->connect_deadline_ms);
  given->call_deadline_ms = given->call_deadline_ms == 0
                                ? kCallDeadlineMs
                                : AtMostADay(given->call_deadline_ms);
  return Status();
}

Connector ConnectorOf(const hoist_connect_options& given) {
  return [given, path = std::string(given.socket_path),
          name = std::string(given.client_name)](
             std::optional<std::chrono::milliseconds> deadline) {
    hoist_connect_options options = given;
    options.socket_path = path.c_str();
    options.client_name = name.c_str();
    if (deadline.has_value()) {
      options.connect_deadline_ms = static_cast<uint64_t>(deadline->count());
    }
    return Session::Connect(options);
  };
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

Result<ModelPtr> WholeOf(const hoist_session* session,
                         const hoist_model* model) {
  if (Status s = CheckBoth(session, model); !s.ok()) return s;
  return model->Whole();
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
  const char* const known = hoist::KnownCodeName(code);
  return known != nullptr ? known : hoist::KnownCodeName(HOIST_UNKNOWN);
}

const char* hoist_version() { return HOIST_VERSION; }

uint64_t hoist_set_patience(uint64_t milliseconds) {
  return static_cast<uint64_t>(
      hoist::SetPatience(hoist::Milliseconds(milliseconds)).count());
}

int hoist_connect(const hoist_connect_options* options, hoist_session** session,
                  hoist_error** error) {
  return Guarded(error, {{session, "session"}}, [&]() -> Status {
    hoist_connect_options given = {};
    if (Status s = hoist::ReadConnect(options, &given); !s.ok()) return s;
    auto connected = hoist::Session::Connect(given);
    if (!connected.ok()) return connected.status();
    std::shared_ptr<hoist::Session> made = std::move(connected).value();
    std::shared_ptr<void> open(nullptr, [made](void*) { made->Close(); });
    *session = new hoist_session{std::move(made), std::move(open)};
    return Status();
  });
}

int hoist_session_share(const hoist_session* session, hoist_session** shared,
                        hoist_error** error) {
  return Guarded(error, {{session, "session"}, {shared, "shared"}},
                 [&]() -> Status {
                   if (Status s = session->session->Check(); !s.ok()) return s;
                   *shared = new hoist_session(*session);
                   return Status();
                 });
}

void hoist_session_close(hoist_session* session) {
  if (session == nullptr || session->session->forked()) return;
  session->session->Close();
}

// In the child of a fork the handle leaks a few bytes: they contain locks that
// no thread may ever unlock.
void hoist_session_free(hoist_session* session) {
  if (session == nullptr || session->session->forked()) return;
  delete session;
}

int hoist_session_check(const hoist_session* session, hoist_error** error) {
  return Guarded(error, {{session, "session"}},
                 [&]() -> Status { return session->session->Check(); });
}

int hoist_session_wake_fd(const hoist_session* session) {
  return session == nullptr ? -1 : session->session->plans().WakeFd();
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
  return Guarded(
      error, {{session, "session"}, {info, "info"}}, [&]() -> Status {
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
