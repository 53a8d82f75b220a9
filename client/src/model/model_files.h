// A model's files, opened with this process's rights.
#ifndef HOIST_CLIENT_SRC_MODEL_MODEL_FILES_H_
#define HOIST_CLIENT_SRC_MODEL_MODEL_FILES_H_

#include <string>
#include <vector>

#include "hoist/shared/status.h"
#include "hoist/shared/unique_fd.h"

namespace hoist {

struct OpenFile {
  std::string name;  // Base name.
  UniqueFd fd;
};

struct ModelFiles {
  std::vector<OpenFile> shards;  // By name.
  std::vector<OpenFile> index;   // One or none.
};

// `path` is a safetensors or GGUF file, or a folder. Of a folder it opens all
// *.safetensors files if there is an index.json, by which the daemon selects;
// else model.safetensors; else all; without any, all *.gguf files. One part of
// a GGUF set stands for all. NotFound, PermissionDenied: the system's.
// InvalidArgument: no such file there, or not a regular one.
Result<ModelFiles> OpenModelFiles(const std::string& path);

}  // namespace hoist

#endif  // HOIST_CLIENT_SRC_MODEL_MODEL_FILES_H_
