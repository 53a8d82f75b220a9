// Requests of admins as plain values; core/requests.h has those of sessions.
// The caller has checked that the peer is an admin.
#ifndef HOIST_DAEMON_ENGINE_ADMIN_REQUESTS_H_
#define HOIST_DAEMON_ENGINE_ADMIN_REQUESTS_H_

#include <cstdint>
#include <string>
#include <variant>

#include "absl/functional/any_invocable.h"
#include "absl/time/time.h"
#include "daemon/core/node_event.h"
#include "daemon/core/requests.h"
#include "daemon/plan/link_share.h"
#include "daemon/types/ids.h"
#include "daemon/types/tier.h"

namespace hoistd {

struct NodeView;

// Ends a session: tells its client to release its holdings and close it; only
// then is its memory given to others. Answered after that. NotFound: no session
// visible to `asker`. FailedPrecondition: its client does not listen (gRPC's do
// not). Aborted: a later request for its end replaced this one, and gets the
// answer.
struct EndSessionArgs {
  using Result = void;

  Peer asker;  // Need not be an admin, for a user's own sessions.
  SessionId session;
};

// Asks the session's plans to give way once no pass has used them for `idle`.
// Answered at once. NotFound: no session visible to `asker`.
// FailedPrecondition: none of its plans does, and why.
struct SleepArgs {
  using Result = PlanTotals;

  Peer asker;  // As EndSessionArgs.
  SessionId session;
  absl::Duration idle;
};

// Asks a session whose plans gave way to set them again. NotFound,
// FailedPrecondition: as EndSessionArgs.
struct WakeArgs {
  using Result = void;

  Peer asker;  // As EndSessionArgs.
  SessionId session;
};

// Runs `look` on the engine's thread, in the order of requests, so a reader
// fills its own message from the books (engine/node_view.h). It must keep no
// reference to them, not block, and take no longer than an eviction: one visit
// of all copies.
struct LookArgs {
  using Result = void;

  absl::AnyInvocable<void(const NodeView&)> look;
};

// Brings all groups of a model up to `to`; evicts idle copies of other models,
// but none of its own. `progress` runs after each group.
struct LoadArgs {
  using Result = LoadProgress;

  ModelId model;
  TierAt to;
  absl::AnyInvocable<void(const LoadProgress&)> progress;
};

// Node::Check for each published group of a model. `progress` runs after each
// group.
struct CheckArgs {
  using Result = CheckProgress;

  Peer asker;
  std::string model;  // Empty: all published models.
  bool repair = false;
  absl::AnyInvocable<void(const CheckProgress&)> progress;
};

struct PinArgs {
  using Result = CopyTotals;

  CopySelector which;
  absl::Duration deadline;
};

struct UnpinArgs {
  using Result = CopyTotals;

  CopySelector which;
};

struct EvictArgs {
  using Result = CopyTotals;

  CopySelector which;
  bool forget = false;  // Also forget the model.
};

// Sets the share of a link that a plan, a permit, or a device's loads have.
// NotFound: no such plan, or nothing streamed; no such permit; no such device.
// InvalidArgument: loads have neither weight nor priority.
struct SetShareArgs {
  using Result = ShareChanged;

  ShareOf of;
  ShareChange change;
};

// Refuses new sessions and stages from now on; false: accepts them again.
struct SetDrainingArgs {
  using Result = void;

  bool draining = true;
};

// `on_event` runs on the engine's thread until Unsubscribe is answered.
struct SubscribeArgs {
  using Result = uint64_t;  // For Unsubscribe.

  absl::AnyInvocable<void(const NodeEvent&)> on_event;
};

struct UnsubscribeArgs {
  using Result = void;

  uint64_t subscription = 0;
};

// All requests of admins, as SessionRequest.
using AdminRequest =
    std::variant<EndSessionArgs, SleepArgs, WakeArgs, LookArgs, LoadArgs,
                 CheckArgs, PinArgs, UnpinArgs, EvictArgs, SetShareArgs,
                 SetDrainingArgs, SubscribeArgs, UnsubscribeArgs>;

}  // namespace hoistd

#endif  // HOIST_DAEMON_ENGINE_ADMIN_REQUESTS_H_
