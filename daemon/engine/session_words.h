// hoistd's words to sessions, unasked.
#ifndef HOIST_DAEMON_ENGINE_SESSION_WORDS_H_
#define HOIST_DAEMON_ENGINE_SESSION_WORDS_H_

#include <map>
#include <utility>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "daemon/base/clock.h"
#include "daemon/core/effects.h"
#include "daemon/core/node.h"
#include "daemon/engine/admin_requests.h"
#include "daemon/engine/engine_api.h"
#include "daemon/types/ids.h"

namespace hoistd {

// The sessions that listen, and the words that admins have for them.
//
// Threads:  the engine's.
// Owns:     the listeners. Borrows the rest, which must outlive this object.
// Bounds:   one listener a session.
class SessionWords {
 public:
  SessionWords(Node& node, const Clock& clock) : node_(node), clock_(clock) {}

  // nullptr: its client does not listen.
  void Add(SessionId session, OnSessionWord on_word);
  void Drop(SessionId session) { listeners_.erase(session); }
  // Nothing if its client does not listen.
  void Say(SessionId session, const SessionWord& word);
  // Asks a plan that lends to give way once it is idle for so long.
  void AskWhenIdle(const GiveWay& ask);

  // NotFound: `asker` may not see the session. FailedPrecondition: its client
  // does not listen.
  absl::Status Check(SessionId session, const Peer& asker) const;
  absl::StatusOr<PlanTotals> Sleep(const SleepArgs& args, Effects& effects);
  absl::Status WakeUp(const WakeArgs& args);

 private:
  Node& node_;
  const Clock& clock_;
  std::map<SessionId, OnSessionWord> listeners_;
};

}  // namespace hoistd

#endif  // HOIST_DAEMON_ENGINE_SESSION_WORDS_H_
