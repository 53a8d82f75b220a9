#include "daemon/store/segment_dir.h"

#include <dirent.h>
#include <fcntl.h>
#include <sys/file.h>
#include <sys/stat.h>
#include <sys/statvfs.h>
#include <unistd.h>

#include <cerrno>
#include <filesystem>
#include <memory>
#include <system_error>
#include <utility>
#include <vector>

#include "absl/strings/match.h"
#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/strip.h"
#include "daemon/base/status.h"
#include "daemon/io/direct_probe.h"

namespace hoistd {
namespace {

std::string PartName(SpillId id) { return absl::StrCat(id.number(), ".part"); }
std::string ImageName(SpillId id) { return absl::StrCat(id.number(), ".img"); }

struct Entry {
  std::string name;
  SpillId id;
  bool part = false;
};

// Our own files in `dir_fd`; what else is there is left alone.
std::vector<Entry> OurFiles(int dir_fd) {
  std::vector<Entry> entries;
  const int own = openat(dir_fd, ".", O_RDONLY | O_DIRECTORY | O_CLOEXEC);
  if (own < 0) return entries;
  const auto close_dir = [](DIR* dir) { closedir(dir); };
  const std::unique_ptr<DIR, decltype(close_dir)> dir(fdopendir(own),
                                                      close_dir);
  if (dir == nullptr) {
    close(own);
    return entries;
  }
  while (const dirent* found = readdir(dir.get())) {
    absl::string_view stem = found->d_name;
    Entry entry = {.name = found->d_name,
                   .part = absl::EndsWith(stem, ".part")};
    uint64_t number = 0;
    if ((absl::ConsumeSuffix(&stem, ".part") ||
         absl::ConsumeSuffix(&stem, ".img")) &&
        absl::SimpleAtoi(stem, &number)) {
      entry.id = SpillId(number);
      entries.push_back(std::move(entry));
    }
  }
  return entries;
}

absl::StatusOr<hoist::UniqueFd> MakeDir(const std::string& path) {
  if (mkdir(path.c_str(), 0700) != 0 && errno != EEXIST) {
    return ErrnoToStatus(errno, path);
  }
  hoist::UniqueFd fd(
      open(path.c_str(), O_RDONLY | O_DIRECTORY | O_NOFOLLOW | O_CLOEXEC));
  if (!fd.valid()) return ErrnoToStatus(errno, path);
  return fd;
}

void OpenDirectWhereItPays(SegmentFile& file, int access) {
  if (!BufferedFileSystem(file.fd.get()).empty()) return;
  auto direct = OpenDirect(file.fd.get(), access);
  if (direct.ok()) file.direct_fd = *std::move(direct);
}

}  // namespace

absl::StatusOr<SegmentDir> SegmentDir::Open(const std::string& path) {
  std::error_code error;
  std::filesystem::create_directories(std::filesystem::path(path).parent_path(),
                                      error);
  SegmentDir dir;
  dir.path_ = path;
  HOIST_ASSIGN_OR_RETURN(const hoist::UniqueFd top, MakeDir(path));
  dir.lock_ = hoist::UniqueFd(openat(
      top.get(), "lock", O_RDWR | O_CREAT | O_NOFOLLOW | O_CLOEXEC, 0600));
  if (!dir.lock_.valid()) return ErrnoToStatus(errno, path + "/lock");
  if (flock(dir.lock_.get(), LOCK_EX | LOCK_NB) != 0) {
    if (errno != EWOULDBLOCK) return ErrnoToStatus(errno, path + "/lock");
    return absl::FailedPreconditionError(absl::StrCat(
        path, " is in use by another hoistd: give this one its own directory"));
  }
  HOIST_ASSIGN_OR_RETURN(dir.images_, MakeDir(path + "/images"));
  HOIST_ASSIGN_OR_RETURN(dir.quarantine_, MakeDir(path + "/quarantine"));
  // The names just made must outlive a power cut, as the images in them do.
  if (fsync(top.get()) != 0) return ErrnoToStatus(errno, path);
  return dir;
}

std::string SegmentDir::ImagePath(SpillId id) const {
  return path_ + "/images/" + ImageName(id);
}

bool SegmentDir::HasImages() const {
  for (const Entry& entry : OurFiles(images_.get())) {
    if (!entry.part) return true;
  }
  return false;
}

absl::StatusOr<bool> SegmentDir::HasCatalogue() const {
  struct stat st = {};
  if (lstat(catalogue_path().c_str(), &st) == 0) return true;
  if (errno == ENOENT) return false;
  return ErrnoToStatus(errno, catalogue_path());
}

void SegmentDir::Sweep(
    const std::function<bool(SpillId, bool quarantined)>& is_known) {
  for (const bool quarantined : {false, true}) {
    const int fd = quarantined ? quarantine_.get() : images_.get();
    for (const Entry& entry : OurFiles(fd)) {
      if (!entry.part && is_known(entry.id, quarantined)) continue;
      // One that stays is found again at the next start.
      unlinkat(fd, entry.name.c_str(), 0);
    }
  }
}

absl::StatusOr<SegmentFile> SegmentDir::CreatePart(SpillId id, uint64_t bytes) {
  const std::string name = PartName(id);
  SegmentFile file;
  file.bytes = bytes;
  file.fd = hoist::UniqueFd(
      openat(images_.get(), name.c_str(),
             O_RDWR | O_CREAT | O_EXCL | O_NOFOLLOW | O_CLOEXEC, 0600));
  if (!file.fd.valid()) return ErrnoToStatus(errno, path_ + "/images/" + name);
  // A full disk is found now, not in the middle; file systems that cannot
  // reserve space find it then.
  int error = 0;
  do {
    error = fallocate(file.fd.get(), 0, 0, static_cast<off_t>(bytes)) == 0
                ? 0
                : errno;
  } while (error == EINTR);
  if (error != 0 && error != EOPNOTSUPP) {
    absl::Status status = ErrnoToStatus(
        error,
        absl::StrCat("reserve ", bytes, " bytes in ", path_, FreeText()));
    DropPart(id);
    return status;
  }
  OpenDirectWhereItPays(file, O_RDWR);
  return file;
}

void SegmentDir::DropPart(SpillId id) {
  // One that stays is swept at the next start.
  unlinkat(images_.get(), PartName(id).c_str(), 0);
}

absl::Status SegmentDir::Publish(SpillId id) {
  if (renameat(images_.get(), PartName(id).c_str(), images_.get(),
               ImageName(id).c_str()) != 0) {
    return ErrnoToStatus(errno, ImagePath(id));
  }
  if (fsync(images_.get()) != 0) return ErrnoToStatus(errno, path_ + "/images");
  return absl::OkStatus();
}

absl::StatusOr<SegmentFile> SegmentDir::OpenImage(SpillId id,
                                                  uint64_t bytes) const {
  SegmentFile file;
  file.fd = hoist::UniqueFd(openat(images_.get(), ImageName(id).c_str(),
                                   O_RDONLY | O_NOFOLLOW | O_CLOEXEC));
  if (!file.fd.valid()) return ErrnoToStatus(errno, ImagePath(id));
  struct stat st = {};
  if (fstat(file.fd.get(), &st) != 0)
    return ErrnoToStatus(errno, ImagePath(id));
  file.bytes = static_cast<uint64_t>(st.st_size);
  if (!S_ISREG(st.st_mode) || file.bytes != bytes) {
    return absl::DataLossError(
        absl::StrCat("it has ", file.bytes, " bytes instead of ", bytes));
  }
  OpenDirectWhereItPays(file, O_RDONLY);
  return file;
}

absl::Status SegmentDir::RemoveImage(SpillId id, bool quarantined) {
  const int fd = quarantined ? quarantine_.get() : images_.get();
  if (unlinkat(fd, ImageName(id).c_str(), 0) != 0 && errno != ENOENT) {
    return ErrnoToStatus(errno, ImagePath(id));
  }
  return absl::OkStatus();
}

absl::Status SegmentDir::Quarantine(SpillId id) {
  const std::string name = ImageName(id);
  if (renameat(images_.get(), name.c_str(), quarantine_.get(), name.c_str()) !=
          0 &&
      errno != ENOENT) {
    return ErrnoToStatus(errno, ImagePath(id));
  }
  return absl::OkStatus();
}

std::string SegmentDir::FreeText() const {
  struct statvfs fs = {};
  if (fstatvfs(images_.get(), &fs) != 0) return "";
  return absl::StrCat(", where ", uint64_t{fs.f_bavail} * fs.f_frsize,
                      " are free");
}

}  // namespace hoistd
