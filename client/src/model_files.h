// The files that a model lies in, opened with this process's rights.
#ifndef HOIST_CLIENT_SRC_MODEL_FILES_H_
#define HOIST_CLIENT_SRC_MODEL_FILES_H_

#include <string>
#include <vector>

#include "client/src/messages.h"
#include "hoist/shared/status.h"

namespace hoist {

struct ModelFiles {
  std::vector<OpenFile> shards;  // By name.
  std::vector<OpenFile> index;   // One or none.
};

// `path` is a safetensors file, or a folder: with its index.json all its
// *.safetensors files, else model.safetensors, else all. The daemon picks by
// the index.
// NotFound, PermissionDenied: as the system says. InvalidArgument: no
// safetensors file there, or not a regular one.
Result<ModelFiles> OpenModelFiles(const std::string& path);

}  // namespace hoist

#endif  // HOIST_CLIENT_SRC_MODEL_FILES_H_
