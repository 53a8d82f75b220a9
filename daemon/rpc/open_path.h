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

// Below which roots, and by whom: in helpers, or where there are none on a
// thread of the queue's, which waits for what hangs.
struct PathEnv {
  std::vector<std::string> roots;
  IoHelpers* io_helpers = nullptr;
  WorkQueue* queue = nullptr;  // Of them one at least.
};

// OpenModelPath below env's roots, in `user`'s helpers: a root may lie on a
// file system that hangs. Files that may hang come parked. `done` runs on
// another thread, once, and must not block.
void OpenPath(PathEnv env, User user, std::string path, Done<ModelFiles> done);

}  // namespace hoistd

#endif  // HOIST_DAEMON_RPC_OPEN_PATH_H_
