// Models that end with their session: what a worker puts aside for itself.
#ifndef HOIST_DAEMON_CORE_NODE_ENDING_H_
#define HOIST_DAEMON_CORE_NODE_ENDING_H_

#include "absl/status/status.h"
#include "absl/time/time.h"
#include "daemon/core/effects.h"
#include "daemon/core/node.h"
#include "daemon/core/requests.h"
#include "daemon/terms/ids.h"

namespace hoistd {

// Which models those are, their names say (EndsWith in model_name.h), which no
// client can give: so every hoistd that finds them knows, whatever else is
// lost. They are written to the disk where their session says so, and not to
// outlive a power cut, which ends the session.
//
// Threads:  the node's.
class NodeEnding {
 public:
  explicit NodeEnding(Node& node) : node_(node) {}

  // Those of sessions that are not there end now, or once nobody uses them. To
  // be called when a session is over, and when all that was kept is restored.
  void EndOfGone();
  // Removes those that end and that nobody uses.
  void Remove(absl::Time now, Effects& effects);
  // Groups of a model that ends with this session are to be on the disk alone,
  // at once or when they are written. PermissionDenied: it does not end with
  // it. FailedPrecondition: some stay on the host, and why; the others go.
  absl::Status Park(SessionId session, const Model& model,
                    const PrefetchArgs& args, absl::Time now, Effects& effects);

 private:
  Node& node_;
};

}  // namespace hoistd

#endif  // HOIST_DAEMON_CORE_NODE_ENDING_H_
