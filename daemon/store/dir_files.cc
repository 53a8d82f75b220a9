#include "daemon/store/dir_files.h"

#include <dirent.h>
#include <fcntl.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <memory>

#include "daemon/base/status.h"

namespace hoistd {
namespace {

// Some file systems do not report an entry's type.
bool IsFile(int dir_fd, const dirent& entry) {
  if (entry.d_type != DT_UNKNOWN) return entry.d_type != DT_DIR;
  struct stat st = {};
  return fstatat(dir_fd, entry.d_name, &st, AT_SYMLINK_NOFOLLOW) != 0 ||
         !S_ISDIR(st.st_mode);
}

absl::StatusOr<hoist::UniqueFd> Written(int dir_fd, const std::string& name,
                                        absl::string_view bytes) {
  hoist::UniqueFd fd(
      openat(dir_fd, name.c_str(),
             O_WRONLY | O_CREAT | O_TRUNC | O_NOFOLLOW | O_CLOEXEC, 0600));
  if (!fd.valid()) return ErrnoToStatus(errno, name);
  while (!bytes.empty()) {
    const ssize_t written = write(fd.get(), bytes.data(), bytes.size());
    if (written < 0 && errno == EINTR) continue;
    if (written <= 0) return ErrnoToStatus(written < 0 ? errno : EIO, name);
    bytes.remove_prefix(static_cast<size_t>(written));
  }
  return fd;
}

}  // namespace

absl::StatusOr<hoist::UniqueFd> MakeDir(const std::string& path) {
  if (mkdir(path.c_str(), 0700) != 0 && errno != EEXIST) {
    return ErrnoToStatus(errno, path);
  }
  hoist::UniqueFd fd(
      open(path.c_str(), O_RDONLY | O_DIRECTORY | O_NOFOLLOW | O_CLOEXEC));
  if (!fd.valid()) return ErrnoToStatus(errno, path);
  return fd;
}

absl::StatusOr<std::vector<std::string>> FilesOf(int dir_fd) {
  std::vector<std::string> names;
  const int own = openat(dir_fd, ".", O_RDONLY | O_DIRECTORY | O_CLOEXEC);
  if (own < 0) return ErrnoToStatus(errno, "list");
  const auto close_dir = [](DIR* dir) { closedir(dir); };
  const std::unique_ptr<DIR, decltype(close_dir)> dir(fdopendir(own),
                                                      close_dir);
  if (dir == nullptr) {
    const int error = errno;
    close(own);
    return ErrnoToStatus(error, "list");
  }
  for (;;) {
    errno = 0;
    const dirent* entry = readdir(dir.get());
    if (entry == nullptr) break;
    if (IsFile(dir_fd, *entry)) names.emplace_back(entry->d_name);
  }
  if (errno != 0) return ErrnoToStatus(errno, "list");
  std::sort(names.begin(), names.end());
  return names;
}

absl::StatusOr<std::vector<std::byte>> ReadStart(int fd, uint64_t bytes) {
  std::vector<std::byte> start(bytes);
  size_t have = 0;
  while (have < start.size()) {
    const ssize_t got = pread(fd, start.data() + have, start.size() - have,
                              static_cast<off_t>(have));
    if (got < 0 && errno == EINTR) continue;
    if (got < 0) return ErrnoToStatus(errno, "read");
    if (got == 0) break;
    have += static_cast<size_t>(got);
  }
  start.resize(have);
  return start;
}

absl::Status WriteFile(int dir_fd, const std::string& name,
                       absl::string_view bytes) {
  return Written(dir_fd, name, bytes).status();
}

absl::Status WriteSynced(int dir_fd, const std::string& name,
                         absl::string_view bytes) {
  HOIST_ASSIGN_OR_RETURN(const hoist::UniqueFd fd,
                         Written(dir_fd, name, bytes));
  if (fdatasync(fd.get()) != 0) return ErrnoToStatus(errno, name);
  return absl::OkStatus();
}

absl::Status Unlink(int dir_fd, const std::string& name) {
  if (unlinkat(dir_fd, name.c_str(), 0) != 0 && errno != ENOENT) {
    return ErrnoToStatus(errno, name);
  }
  return absl::OkStatus();
}

absl::Status SyncDir(int dir_fd) {
  if (fsync(dir_fd) != 0) return ErrnoToStatus(errno, "sync names");
  return absl::OkStatus();
}

}  // namespace hoistd
