// The single entry to hoistd: each verb once, for all transports.
//
// The session socket and gRPC both call it. Verbs run on the engine's thread,
// the sole owner of core's Node. Work that waits (opening files, disk, copies)
// runs elsewhere and posts its result. So Node needs no lock, and all events
// have one order.
#ifndef HOIST_DAEMON_ENGINE_ENGINE_API_H_
#define HOIST_DAEMON_ENGINE_ENGINE_API_H_

#include <cstdint>
#include <memory>
#include <string>
#include <type_traits>
#include <utility>
#include <variant>
#include <vector>

#include "absl/functional/any_invocable.h"
#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/time/time.h"
#include "daemon/core/facts.h"
#include "daemon/core/requests.h"
#include "daemon/engine/admin_requests.h"
#include "daemon/trace/recorder.h"
#include "daemon/types/device.h"
#include "daemon/types/ids.h"
#include "daemon/types/io_engine.h"
#include "daemon/types/tier.h"

namespace hoistd {

// The outcome of a request: its result, or an error.
template <typename Result>
using Outcome = std::conditional_t<std::is_void_v<Result>, absl::Status,
                                   absl::StatusOr<Result>>;
template <typename Result>
using Done = absl::AnyInvocable<void(Outcome<Result>)>;

// A request, and the callback for its type of result.
template <typename Args>
struct Call {
  Args args;
  Done<typename Args::Result> done;
};
template <typename Requests>
struct CallsTo;
template <typename... Args>
struct CallsTo<std::variant<Args...>> {
  using Any = std::variant<Call<Args>...>;
};
using SessionCall = CallsTo<SessionRequest>::Any;
using AdminCall = CallsTo<AdminRequest>::Any;

// Sent to a session unasked. SlabAsk: close these slabs; SlabsClosed answers
// it. GiveWay: end this plan once it is idle. Wake: set those plans again.
// Status: why the session must end; its client releases its holdings and
// closes.
using SessionWord = std::variant<SlabAsk, GiveWay, Wake, absl::Status>;
using OnSessionWord = absl::AnyInvocable<void(const SessionWord&)>;

// Threads:  thread-safe; every call returns at once. Callbacks run once each,
//           on the engine's thread, and must not block; they may call the
//           engine. After its stop they get Unavailable.
// Errors:   NotFound (no such session, model, group, lease), PermissionDenied,
//           ResourceExhausted (with what would be enough), Unavailable
//           (draining, stopping), DataLoss.
class EngineApi {
 public:
  virtual ~EngineApi() = default;

  // `on_word` runs like a callback while the session is open; nullptr: the
  // client does not listen.
  virtual void OpenSession(OpenSessionArgs args, OnSessionWord on_word,
                           Done<SessionId> done) = 0;
  // The holdings of a session of the last hoistd; once. See Node::Resume.
  // `on_word` as above.
  virtual void Resume(SessionId session, ResumeArgs has, OnSessionWord on_word,
                      Done<Resumed> done) = 0;
  // Releases all holdings of the session. A no-op if unknown or closed.
  virtual void CloseSession(SessionId session) = 0;

  // Sends a SessionRequest or an AdminRequest. Its arguments document its
  // effect and its answer.
  template <typename Args>
  void Ask(SessionId session, Args args, Done<typename Args::Result> done) {
    Accept(session, Call<Args>{std::move(args), std::move(done)});
  }
  template <typename Args>
  void Ask(Args args, Done<typename Args::Result> done) {
    Accept(Call<Args>{std::move(args), std::move(done)});
  }
  // Records copies and waits until the returned recording stops. No request:
  // the caller's thread allocates the recording's memory. ResourceExhausted:
  // another recording runs. Unimplemented: not supported.
  virtual void Trace(Done<std::unique_ptr<TraceRecording>> done) = 0;

  virtual NodeFacts facts() const = 0;
  virtual NodeNotes notes() const = 0;
  virtual absl::Time Now() const = 0;

 private:
  virtual void Accept(SessionId session, SessionCall call) = 0;
  virtual void Accept(AdminCall call) = 0;
};

}  // namespace hoistd

#endif  // HOIST_DAEMON_ENGINE_ENGINE_API_H_
