// Loads a model from a path into a tier, for Admin.Load and models.preload.
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

// Opens the model's files as `who`, registers the model and loads it. `what`
// names the caller in the list of sessions. The load continues if the caller
// leaves. Errors: OpenPath's and the engine's. `progress` runs on the engine's
// thread, `done` there or on OpenPath's; neither may block.
void BringUp(EngineApi& engine, PathEnv env, Peer who, std::string what,
             LoadWish wish,
             absl::AnyInvocable<void(const LoadProgress&)> progress,
             Done<BroughtUp> done);

}  // namespace hoistd

#endif  // HOIST_DAEMON_RPC_BRING_UP_H_
