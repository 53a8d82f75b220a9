#include "client/src/model/model_files.h"

#include <dirent.h>
#include <fcntl.h>
#include <sys/stat.h>

#include <algorithm>
#include <cerrno>
#include <memory>
#include <utility>

#include "hoist/shared/weight_files.h"
#include "hoist/shared/wire.h"

namespace hoist {
namespace {

constexpr char kIndexName[] = "model.safetensors.index.json";
constexpr char kSingleName[] = "model.safetensors";

struct CloseDir {
  void operator()(DIR* dir) const { closedir(dir); }
};

// O_NONBLOCK: the open of a pipe must not block; regular files ignore it.
Result<OpenFile> OpenRegular(const std::string& folder,
                             const std::string& name) {
  const std::string path = folder.empty() ? name : folder + "/" + name;
  UniqueFd fd(open(path.c_str(), O_RDONLY | O_CLOEXEC | O_NONBLOCK));
  if (!fd.valid()) return ErrnoStatus(errno, "open " + path);
  struct stat info;
  if (fstat(fd.get(), &info) != 0) return ErrnoStatus(errno, "stat " + path);
  if (!S_ISREG(info.st_mode)) {
    return Status(Code::kInvalidArgument, path + " is not a regular file");
  }
  return OpenFile{name, std::move(fd)};
}

Result<std::vector<std::string>> NamesIn(const std::string& folder) {
  const std::unique_ptr<DIR, CloseDir> dir(opendir(folder.c_str()));
  if (dir == nullptr) return ErrnoStatus(errno, "open folder " + folder);
  std::vector<std::string> names;
  errno = 0;
  while (const dirent* entry = readdir(dir.get())) {
    names.emplace_back(entry->d_name);
    errno = 0;
  }
  if (errno != 0) return ErrnoStatus(errno, "read folder " + folder);
  std::sort(names.begin(), names.end());
  return names;
}

bool Has(const std::vector<std::string>& names, const char* name) {
  return std::binary_search(names.begin(), names.end(), name);
}

Result<ModelFiles> OpenShards(const std::string& folder,
                              const std::vector<std::string>& names) {
  // One more descriptor may carry the message itself.
  if (names.size() + 2 > kMaxFdsPerMessage) {
    return Status(Code::kInvalidArgument,
                  folder + " holds " + std::to_string(names.size()) +
                      " files of weights; at most " +
                      std::to_string(kMaxFdsPerMessage - 2) +
                      " can be registered as one model");
  }
  ModelFiles files;
  for (const std::string& name : names) {
    Result<OpenFile> file = OpenRegular(folder, name);
    if (!file.ok()) return file.status();
    files.shards.push_back(std::move(file).value());
  }
  return files;
}

Result<ModelFiles> OpenFolder(const std::string& folder) {
  Result<std::vector<std::string>> names = NamesIn(folder);
  if (!names.ok()) return names.status();
  std::vector<std::string> shards = WeightFilesOf(*names);
  if (shards.empty()) {
    return Status(Code::kInvalidArgument,
                  folder + " holds no .safetensors or .gguf file");
  }
  const bool indexed = Has(*names, kIndexName);
  if (!indexed && Has(*names, kSingleName)) shards = {kSingleName};
  Result<ModelFiles> files = OpenShards(folder, shards);
  if (!files.ok() || !indexed) return files;
  Result<OpenFile> file = OpenRegular(folder, kIndexName);
  if (!file.ok()) return file.status();
  files->index.push_back(std::move(file).value());
  return files;
}

}  // namespace

Result<ModelFiles> OpenModelFiles(const std::string& path) {
  struct stat info;
  if (stat(path.c_str(), &info) != 0) return ErrnoStatus(errno, path);
  if (S_ISDIR(info.st_mode)) return OpenFolder(path);
  const size_t slash = path.rfind('/');
  const bool bare = slash == std::string::npos;
  const std::string folder = bare ? "" : path.substr(0, slash);
  return OpenShards(bare || slash > 0 ? folder : "/",
                    GgufSetOf(bare ? path : path.substr(slash + 1)));
}

}  // namespace hoist
