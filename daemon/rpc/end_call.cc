#include "daemon/rpc/end_call.h"

#include <chrono>
#include <memory>
#include <utility>

#include "absl/strings/str_cat.h"
#include "daemon/convert/types_convert.h"
#include "daemon/rpc/node_reader.h"
#include "daemon/rpc/unary_call.h"
#include "grpcpp/alarm.h"

namespace hoistd {
namespace {

absl::Status StillThere(SessionId session, absl::Duration waited) {
  return absl::DeadlineExceededError(absl::StrCat(
      "session ", session.number(),
      " was told to end, and has not let go within ",
      absl::FormatDuration(waited),
      ": its worker uses what it has, is stopped, or hangs. That stays its own "
      "until it does; "
      "`hoistctl end ",
      session.number(), " --kill` ends its process"));
}

}  // namespace

grpc::ServerUnaryReactor* StartEndCall(CallEnv& env,
                                       absl::StatusOr<AdminAct> given,
                                       SessionId session,
                                       absl::Duration deadline,
                                       pb::EndSessionResponse* response) {
  return StartUnaryCall(
      response, std::move(given), [&](auto call, AdminAct act) {
        // Owned by the engine's callback, which may outlast the call.
        auto alarm = std::make_shared<grpc::Alarm>();
        alarm->Set(std::chrono::system_clock::now() +
                       absl::ToChronoMilliseconds(deadline),
                   [call, session, deadline, act](bool rang) {
                     if (!rang) return;
                     const absl::Status late = StillThere(session, deadline);
                     act.Ended(late);
                     call->Fail(late);
                   });
        // The answer has the session as it is now: afterwards it is gone.
        auto was = std::make_shared<pb::SessionStatus>();
        env.engine.Ask(LookArgs{[session, was](const NodeView& view) {
                         NodeReader(view).Session(session, was.get());
                       }},
                       [](const absl::Status&) {});  // The next one fails, too.
        env.engine.Ask(EndSessionArgs{act.who(), session},
                       [call, alarm, was, act](absl::Status ended) {
                         act.Ended(ended, ended.ok() ? AuditText(*was) : "");
                         alarm->Cancel();
                         if (!ended.ok()) return call->Fail(ended);
                         pb::EndSessionResponse out;
                         *out.mutable_session() = std::move(*was);
                         call->Reply(std::move(out));
                       });
      });
}

}  // namespace hoistd
