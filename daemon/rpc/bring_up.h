// A model from a path to a tier: what Admin.Load and models.preload do.
#ifndef HOIST_DAEMON_RPC_BRING_UP_H_
#define HOIST_DAEMON_RPC_BRING_UP_H_

#include <optional>
#include <string>
#include <vector>

#include "absl/functional/any_invocable.h"
#include "daemon/engine/engine_api.h"
#include "daemon/rpc/open_path.h"

namespace hoistd {

struct LoadWish {
  std::string path;
  std::string name;  // Empty: the folder's or file's.
  TierAt to;
  std::vector<JoinedTensor> joined;
  GroupingSpec grouping;
  std::optional<Readers> readers;
};

struct BroughtUp {
  ModelPtr model;
  LoadProgress progress;  // Its last.
};

// Opens the model's files as `who`, registers it and brings it up. `what`: who
// that is among sessions. What was begun goes on when the caller leaves.
// OpenPath's errors, the engine's. `progress` and `done` run on the engine's
// thread, or `done` on that of OpenPath; neither may block.
void BringUp(EngineApi& engine, PathEnv env, Peer who, std::string what,
             LoadWish wish,
             absl::AnyInvocable<void(const LoadProgress&)> progress,
             Done<BroughtUp> done);

}  // namespace hoistd

#endif  // HOIST_DAEMON_RPC_BRING_UP_H_
