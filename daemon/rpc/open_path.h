#ifndef HOIST_DAEMON_RPC_OPEN_PATH_H_
#define HOIST_DAEMON_RPC_OPEN_PATH_H_

#include <string>

#include "daemon/engine/engine_api.h"
#include "daemon/rpc/call_env.h"
#include "daemon/rpc/model_path.h"
#include "daemon/terms/ids.h"

namespace hoistd {

// OpenModelPath below env's roots, in `user`'s errands: a root may lie on a
// file system that hangs. Files that may hang come parked. `done` runs on
// another thread, once, and must not block.
void OpenPath(CallEnv& env, User user, std::string path, Done<ModelFiles> done);

}  // namespace hoistd

#endif  // HOIST_DAEMON_RPC_OPEN_PATH_H_
