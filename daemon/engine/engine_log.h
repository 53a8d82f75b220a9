// Logs a node's events: one line each, at the level debug but for those that an
// operator has to know.
//
// All lines are derived here, from Node's effects and their outcome: one place
// defines the log's contents.
#ifndef HOIST_DAEMON_ENGINE_ENGINE_LOG_H_
#define HOIST_DAEMON_ENGINE_ENGINE_LOG_H_

#include <cstdint>
#include <string>

#include "absl/container/flat_hash_map.h"
#include "absl/status/status.h"
#include "absl/strings/string_view.h"
#include "absl/time/time.h"
#include "daemon/core/effects.h"
#include "daemon/core/node_event.h"
#include "daemon/core/transfer.h"
#include "daemon/types/ids.h"

namespace hoistd {

// Threads:  the engine's.
// Bounds:   transfers in progress. At other levels a call only looks at
//           events.
class EngineLog {
 public:
  // All effects except answers, which only the engine can tell apart.
  void Tell(const Effects& effects, absl::Time now);
  // A session's wait has ended. `name`: of the staged group.
  void Staged(const LeaseGrant& grant, absl::string_view name,
              SessionId session, absl::Duration waited);
  void Planned(const PlanGrant& plan, SessionId session, absl::Duration waited);
  void Ended(TransferId id, const absl::Status& status, absl::Time now);
  void SlabZeroed(DeviceIndex device, SlabId slab, const absl::Status& status);
  void SlabMade(DeviceIndex device, SlabId slab, const absl::Status& status);

 private:
  struct UnderWay {
    std::string what;  // "file -> host m/layers.0"
    uint64_t bytes = 0;
    absl::Time since;
  };

  absl::flat_hash_map<TransferId, UnderWay> under_way_;
};

}  // namespace hoistd

#endif  // HOIST_DAEMON_ENGINE_ENGINE_LOG_H_
