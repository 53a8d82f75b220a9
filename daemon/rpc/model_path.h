// Opens a model by path, for callers that cannot pass descriptors.
#ifndef HOIST_DAEMON_RPC_MODEL_PATH_H_
#define HOIST_DAEMON_RPC_MODEL_PATH_H_

#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "absl/base/thread_annotations.h"
#include "absl/status/statusor.h"
#include "absl/synchronization/mutex.h"
#include "daemon/core/requests.h"

namespace hoistd {

struct ModelFiles {
  std::string name;  // The folder's, or the file's without its ending.
  std::vector<OpenFile> shards;  // By name.
  std::optional<OpenFile> index;
};

// Opens a model's files. `path` is one safetensors or GGUF file, a part of a
// GGUF set ("m-00001-of-00003.gguf"), which stands for all, or a folder with
// *.safetensors and optionally model.safetensors.index.json, or with *.gguf.
//
// A path is never authority: it must lie below one of `roots`, and so must the
// target of every symlink and ".." on the way. Only regular files are opened;
// inspecting anything else has no effect on it.
//
// FailedPrecondition: there are no roots. PermissionDenied: the path is outside
// of them, or not readable by hoistd. NotFound: no such file. InvalidArgument:
// not a model. Blocks on the disk.
absl::StatusOr<ModelFiles> OpenModelPath(const std::vector<std::string>& roots,
                                         const std::string& path);

// The current roots. Thread-safe.
class ModelRoots {
 public:
  void Set(std::vector<std::string> roots) ABSL_LOCKS_EXCLUDED(mu_) {
    const absl::MutexLock lock(&mu_);
    roots_ = std::move(roots);
  }
  std::vector<std::string> Get() const ABSL_LOCKS_EXCLUDED(mu_) {
    const absl::MutexLock lock(&mu_);
    return roots_;
  }

 private:
  mutable absl::Mutex mu_;
  std::vector<std::string> roots_ ABSL_GUARDED_BY(mu_);
};

}  // namespace hoistd

#endif  // HOIST_DAEMON_RPC_MODEL_PATH_H_
