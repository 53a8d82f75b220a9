#include "daemon/rpc/model_path.h"

#include <dirent.h>
#include <fcntl.h>
#include <linux/openat2.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <unistd.h>

#include <cerrno>
#include <memory>
#include <utility>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "absl/strings/str_split.h"
#include "absl/strings/strip.h"
#include "daemon/base/status.h"
#include "hoist/shared/unique_fd.h"
#include "hoist/shared/weight_files.h"

namespace hoistd {
namespace {

constexpr char kIndexName[] = "model.safetensors.index.json";
// The largest published models have some 200 shards.
constexpr size_t kMaxShards = 2048;
constexpr size_t kMaxEntries = 65536;
constexpr size_t kMaxPathBytes = 4096;

struct CloseDir {
  void operator()(DIR* dir) const { closedir(dir); }
};

absl::Status Outside(const std::vector<std::string>& roots,
                     const std::string& path) {
  return absl::PermissionDeniedError(absl::StrCat(
      path, " does not lie below a model root (", absl::StrJoin(roots, ", "),
      "), or leads out of it; add its folder to models.roots in hoistd.toml, "
      "or register it with libhoist, which opens the files itself"));
}

// OpenBeneath step by step, for containers whose seccomp profile lacks openat2
// (systemd-nspawn 252). Without the kernel's help, symlinks and ".." cannot be
// followed safely, so they are refused.
int WalkBeneath(int root, const std::string& below, int flags) {
  hoist::UniqueFd at(openat(root, ".", O_PATH | O_CLOEXEC));
  if (!at.valid()) return -errno;
  for (absl::string_view step : absl::StrSplit(below, '/')) {
    if (step.empty() || step == ".") continue;
    if (step == "..") return -EXDEV;
    hoist::UniqueFd next(openat(at.get(), std::string(step).c_str(),
                                O_PATH | O_NOFOLLOW | O_CLOEXEC));
    if (!next.valid()) return -errno;
    struct stat info;
    if (fstat(next.get(), &info) != 0) return -errno;
    if (S_ISLNK(info.st_mode)) return -ELOOP;
    at = std::move(next);
  }
  if ((flags & O_PATH) != 0) return at.release();
  // Without O_PATH, callers open only folders.
  const int fd = openat(at.get(), ".", flags | O_CLOEXEC);
  return fd >= 0 ? fd : -errno;
}

// Returns a descriptor, or -errno. `flags`: O_PATH, or O_DIRECTORY and others.
int OpenBeneath(int root, const std::string& below, int flags) {
  open_how how = {};
  how.flags = static_cast<uint64_t>(flags | O_CLOEXEC);
  how.resolve = RESOLVE_BENEATH | RESOLVE_NO_MAGICLINKS;
  while (true) {
    const long fd =
        syscall(SYS_openat2, root, below.c_str(), &how, sizeof(how));
    if (fd >= 0) return static_cast<int>(fd);
    if (errno == ENOSYS || errno == EPERM) {
      return WalkBeneath(root, below, flags);
    }
    // EAGAIN: a concurrent rename raced with "..", and the kernel gave up.
    if (errno != EINTR && errno != EAGAIN) return -errno;
  }
}

// An open root, and the path below it.
class Beneath {
 public:
  Beneath(const std::vector<std::string>& roots, const std::string& path,
          hoist::UniqueFd root)
      : roots_(roots), path_(path), root_(std::move(root)) {}

  // `below` is relative to the root.
  absl::StatusOr<hoist::UniqueFd> Open(const std::string& below,
                                       int flags) const {
    const int fd = OpenBeneath(root_.get(), below, flags);
    if (fd >= 0) return hoist::UniqueFd(fd);
    // The RESOLVE_ flags forbid the path.
    if (fd == -EXDEV || fd == -ELOOP) return Outside(roots_, path_);
    return ErrnoToStatus(-fd, absl::StrCat("open ", path_, " (", below, ")"));
  }

  // Opens a regular file for reading. Inspects it through O_PATH first, since
  // opening a FIFO, a tape or a watchdog has side effects.
  absl::StatusOr<hoist::UniqueFd> OpenRegular(const std::string& below) const {
    HOIST_ASSIGN_OR_RETURN(const hoist::UniqueFd at, Open(below, O_PATH));
    struct stat info;
    if (fstat(at.get(), &info) != 0) return ErrnoToStatus(errno, below);
    if (!S_ISREG(info.st_mode)) {
      return absl::InvalidArgumentError(
          absl::StrCat(below, " is not a regular file"));
    }
    // Opens the file that was inspected, even if its name has changed.
    const std::string self = absl::StrCat("/proc/self/fd/", at.get());
    hoist::UniqueFd fd(open(self.c_str(), O_RDONLY | O_CLOEXEC | O_NOCTTY));
    if (!fd.valid()) {
      return ErrnoToStatus(errno,
                           absl::StrCat("open ", below, " as hoistd's user"));
    }
    return fd;
  }

 private:
  const std::vector<std::string>& roots_;
  const std::string& path_;
  hoist::UniqueFd root_;
};

// `path` relative to `root`; "." for the root itself. nullopt: not below it.
std::optional<std::string> BelowRoot(absl::string_view root,
                                     absl::string_view path) {
  while (root.size() > 1 && absl::ConsumeSuffix(&root, "/")) {
  }
  if (!absl::ConsumePrefix(&path, root)) return std::nullopt;
  if (root != "/" && !path.empty() && path.front() != '/') return std::nullopt;
  while (absl::ConsumePrefix(&path, "/")) {
  }
  return path.empty() ? std::string(".") : std::string(path);
}

absl::StatusOr<std::vector<std::string>> ListShards(hoist::UniqueFd folder,
                                                    const std::string& path,
                                                    bool* has_index) {
  // readdir needs an open file description of its own, for reading.
  const std::unique_ptr<DIR, CloseDir> dir(fdopendir(folder.get()));
  if (dir == nullptr) return ErrnoToStatus(errno, path);
  static_cast<void>(folder.release());  // The DIR owns it now.
  std::vector<std::string> names;
  for (size_t entries = 0;; ++entries) {
    errno = 0;
    const dirent* entry = readdir(dir.get());
    if (entry == nullptr && errno != 0) return ErrnoToStatus(errno, path);
    if (entry == nullptr) break;
    if (entries == kMaxEntries) {
      return absl::InvalidArgumentError(
          absl::StrCat(path, " has more than ", kMaxEntries,
                       " entries; name a folder that holds one model"));
    }
    const std::string name = entry->d_name;
    if (name == kIndexName) *has_index = true;
    if (hoist::IsWeightFile(name)) names.push_back(name);
  }
  names = hoist::WeightFilesOf(names);
  if (names.empty()) {
    return absl::InvalidArgumentError(
        absl::StrCat(path,
                     " holds no *.safetensors and no *.gguf; name the folder "
                     "that does, or a file"));
  }
  if (names.size() > kMaxShards) {
    return absl::InvalidArgumentError(absl::StrCat(
        path, " holds ", names.size(), " files of weights; at most ",
        kMaxShards, " may make a model"));
  }
  return names;
}

std::string BaseName(absl::string_view path) {
  while (path.size() > 1 && absl::ConsumeSuffix(&path, "/")) {
  }
  return std::string(path.substr(path.rfind('/') + 1));
}

absl::StatusOr<ModelFiles> OpenFolder(const Beneath& beneath,
                                      const std::string& path,
                                      const std::string& below) {
  ModelFiles files;
  files.name = BaseName(path);
  HOIST_ASSIGN_OR_RETURN(hoist::UniqueFd folder,
                         beneath.Open(below, O_RDONLY | O_DIRECTORY));
  bool has_index = false;
  HOIST_ASSIGN_OR_RETURN(const std::vector<std::string> names,
                         ListShards(std::move(folder), path, &has_index));
  for (const std::string& name : names) {
    OpenFile file;
    file.name = name;
    HOIST_ASSIGN_OR_RETURN(file.fd,
                           beneath.OpenRegular(absl::StrCat(below, "/", name)));
    files.shards.push_back(std::move(file));
  }
  if (has_index) {
    OpenFile file;
    file.name = kIndexName;
    HOIST_ASSIGN_OR_RETURN(
        file.fd, beneath.OpenRegular(absl::StrCat(below, "/", kIndexName)));
    files.index = std::move(file);
  }
  return files;
}

// One file, or all of the set that it is a part of.
absl::StatusOr<ModelFiles> OpenNamed(const Beneath& beneath,
                                     const std::string& path,
                                     const std::string& below) {
  const std::string base = BaseName(path);
  const std::vector<std::string> names = hoist::GgufSetOf(base);
  ModelFiles files;
  files.name = base.substr(0, base.rfind('.'));
  if (names.size() > 1) {
    files.name.resize(files.name.size() - hoist::kGgufPartBytes);
  }
  const std::string folder = below.substr(0, below.rfind('/') + 1);
  for (const std::string& name : names) {
    OpenFile file;
    file.name = name;
    HOIST_ASSIGN_OR_RETURN(
        file.fd, beneath.OpenRegular(name == base ? below : folder + name));
    files.shards.push_back(std::move(file));
  }
  return files;
}

absl::StatusOr<ModelFiles> OpenBelow(const std::vector<std::string>& roots,
                                     const std::string& root,
                                     const std::string& path,
                                     const std::string& below) {
  hoist::UniqueFd root_fd(open(root.c_str(), O_PATH | O_DIRECTORY | O_CLOEXEC));
  if (!root_fd.valid()) {
    return ErrnoToStatus(errno, absl::StrCat("open the model root ", root));
  }
  const Beneath beneath(roots, path, std::move(root_fd));
  HOIST_ASSIGN_OR_RETURN(const hoist::UniqueFd at, beneath.Open(below, O_PATH));
  struct stat info;
  if (fstat(at.get(), &info) != 0) return ErrnoToStatus(errno, path);
  if (S_ISDIR(info.st_mode)) return OpenFolder(beneath, path, below);
  if (S_ISREG(info.st_mode) && !hoist::IsWeightFile(BaseName(path))) {
    return absl::InvalidArgumentError(absl::StrCat(
        path, " is no *.safetensors or *.gguf file, nor a folder of them"));
  }
  return OpenNamed(beneath, path, below);
}

}  // namespace

absl::StatusOr<ModelFiles> OpenModelPath(const std::vector<std::string>& roots,
                                         const std::string& path) {
  if (path.empty() || path.front() != '/' || path.size() >= kMaxPathBytes ||
      path.find('\0') != std::string::npos) {
    return absl::InvalidArgumentError(
        absl::StrCat("path must be absolute, of at most ", kMaxPathBytes - 1,
                     " bytes and without NUL bytes"));
  }
  if (roots.empty()) {
    return absl::FailedPreconditionError(
        "no path may be named over gRPC: models.roots in hoistd.toml is empty; "
        "add a folder to it, or register the model with libhoist, which opens "
        "the files itself");
  }
  for (const std::string& root : roots) {
    const std::optional<std::string> below = BelowRoot(root, path);
    if (below.has_value()) return OpenBelow(roots, root, path, *below);
  }
  return Outside(roots, path);
}

}  // namespace hoistd
