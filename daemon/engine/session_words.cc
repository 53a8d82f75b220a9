#include "daemon/engine/session_words.h"

#include "absl/strings/str_cat.h"
#include "daemon/base/status.h"

namespace hoistd {

void SessionWords::Add(SessionId session, OnSessionWord on_word) {
  if (on_word != nullptr) listeners_[session] = std::move(on_word);
}

void SessionWords::Say(SessionId session, const SessionWord& word) {
  // A session of the last hoistd may not have resumed yet.
  const auto listener = listeners_.find(session);
  if (listener != listeners_.end()) listener->second(word);
}

void SessionWords::AskWhenIdle(const GiveWay& ask) {
  const StandingPlan* plan = node_.tenure().plans().FindLive(ask.plan);
  if (plan == nullptr || !plan->grant.lends() ||
      ask.idle == absl::InfiniteDuration()) {
    return;
  }
  node_.tenure().reclaim().loans().Ask(*plan, {Loan::Why::kIdle, clock_.Now()});
  Say(ask.session, ask);
}

absl::Status SessionWords::Check(SessionId session, const Peer& asker) const {
  HOIST_ASSIGN_OR_RETURN(const SessionBook::Session* const seen,
                         node_.picture().FindSession(session, asker));
  if (listeners_.contains(session)) return absl::OkStatus();
  return absl::FailedPreconditionError(absl::StrCat(
      "session ", session.number(), " came by ", seen->args.peer.via,
      " and cannot be asked to let go; cancel its call, or end its process"));
}

absl::StatusOr<PlanTotals> SessionWords::Sleep(const SleepArgs& args,
                                               Effects& effects) {
  HOIST_RETURN_IF_ERROR(Check(args.session, args.asker));
  const PlanTotals totals = node_.tenure().reclaim().Ask(
      args.session, args.idle, clock_.Now(), effects);
  if (totals.asked > 0) return totals;
  return absl::FailedPreconditionError(absl::StrCat(
      "session ", args.session.number(), " has ",
      totals.kept == 0 ? "no plan, so nothing that could sleep"
                       : "no plan that gives way: PyTorch's modules do, on one "
                         "device, without zero-copy weights or a pipeline; C++ "
                         "and LibTorch's, if their options say so"));
}

absl::Status SessionWords::WakeUp(const WakeArgs& args) {
  HOIST_RETURN_IF_ERROR(Check(args.session, args.asker));
  Say(args.session, Wake{args.session});
  return absl::OkStatus();
}

}  // namespace hoistd
