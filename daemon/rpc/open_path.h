#ifndef HOIST_DAEMON_RPC_OPEN_PATH_H_
#define HOIST_DAEMON_RPC_OPEN_PATH_H_

#include <string>
#include <vector>

#include "daemon/engine/engine_api.h"
#include "daemon/io_helper/io_helpers.h"
#include "daemon/rpc/model_path.h"
#include "daemon/rpc/work_queue.h"
#include "daemon/types/ids.h"

namespace hoistd {

// The allowed roots, and the place where files are opened: I/O helpers, or else
// a thread of the queue, which a file system that hangs blocks.
struct PathEnv {
  std::vector<std::string> roots;
  IoHelpers* io_helpers = nullptr;
  WorkQueue* queue = nullptr;  // At least one of the two is set.
};

// Runs OpenModelPath below env's roots in `user`'s I/O helpers, since a root
// may lie on a file system that hangs. Files that may hang come parked. `done`
// runs once, on another thread, and must not block.
void OpenPath(PathEnv env, User user, std::string path, Done<ModelFiles> done);

}  // namespace hoistd

#endif  // HOIST_DAEMON_RPC_OPEN_PATH_H_
