#include "daemon/store/segment_dir.h"

#include <dirent.h>
#include <fcntl.h>
#include <sys/file.h>
#include <sys/stat.h>
#include <sys/statvfs.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstdio>
#include <filesystem>
#include <memory>
#include <system_error>
#include <utility>
#include <vector>

#include "absl/strings/ascii.h"
#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/string_view.h"
#include "absl/strings/strip.h"
#include "daemon/base/status.h"
#include "daemon/io/direct_probe.h"

namespace hoistd {
namespace {

constexpr absl::string_view kPart = ".part";
constexpr absl::string_view kImage = ".img";
constexpr absl::string_view kRemoved = ".del";  // As long as ".img": no room.
constexpr absl::string_view kLost = ".lost";

// Ids beyond are nobody's: the next ones must fit SQLite's integers.
constexpr uint64_t kMaxId = uint64_t{1} << 62;
// Of damaged catalogues.
constexpr int kMostKept = 8;
constexpr size_t kMostWhy = 500;

std::string NameOf(SpillId id, absl::string_view suffix) {
  return absl::StrCat(id.number(), suffix);
}

std::string KeptName(int n) { return absl::StrCat("catalogue.db.damaged-", n); }

// Ids that have a file with this suffix in `dir_fd`, in no order. What else is
// there is left alone.
std::vector<SpillId> IdsIn(int dir_fd, absl::string_view suffix) {
  std::vector<SpillId> ids;
  const int own = openat(dir_fd, ".", O_RDONLY | O_DIRECTORY | O_CLOEXEC);
  if (own < 0) return ids;
  const auto close_dir = [](DIR* dir) { closedir(dir); };
  const std::unique_ptr<DIR, decltype(close_dir)> dir(fdopendir(own),
                                                      close_dir);
  if (dir == nullptr) {
    close(own);
    return ids;
  }
  while (const dirent* found = readdir(dir.get())) {
    absl::string_view stem = found->d_name;
    uint64_t number = 0;
    if (absl::ConsumeSuffix(&stem, suffix) && absl::SimpleAtoi(stem, &number) &&
        number > 0 && number < kMaxId &&
        NameOf(SpillId(number), suffix) == found->d_name) {
      ids.push_back(SpillId(number));
    }
  }
  return ids;
}

// The first `bytes`, as far as the file goes.
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

absl::Status Unlink(int dir_fd, const std::string& name) {
  if (unlinkat(dir_fd, name.c_str(), 0) != 0 && errno != ENOENT) {
    return ErrnoToStatus(errno, name);
  }
  return absl::OkStatus();
}

bool Exists(const std::string& path) {
  struct stat st = {};
  return lstat(path.c_str(), &st) == 0;
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
  return path_ + "/images/" + NameOf(id, kImage);
}

absl::StatusOr<bool> SegmentDir::HasCatalogue() const {
  struct stat st = {};
  if (lstat(catalogue_path().c_str(), &st) == 0) return true;
  if (errno == ENOENT) return false;
  return ErrnoToStatus(errno, catalogue_path());
}

void SegmentDir::DropNewCatalogue() {
  for (const char* end : {"", "-wal", "-shm", "-journal"}) {
    unlink((new_catalogue_path() + end).c_str());
  }
}

absl::StatusOr<std::string> SegmentDir::ReplaceCatalogue() {
  const std::string old = catalogue_path();
  std::string kept;
  for (int n = 1; n <= kMostKept; ++n) {
    const std::string name = absl::StrCat(path_, "/", KeptName(n));
    if (Exists(name)) continue;
    // A link, so that there is a catalogue at every moment; not all file
    // systems have them.
    if (link(old.c_str(), name.c_str()) == 0 ||
        rename(old.c_str(), name.c_str()) == 0) {
      kept = KeptName(n);
    }
    break;
  }
  // Its WAL must go before: the new one would take it for its own.
  if (kept.empty()) {
    unlink((old + "-wal").c_str());
  } else if (rename((old + "-wal").c_str(),
                    (path_ + "/" + kept + "-wal").c_str()) != 0 &&
             errno != ENOENT) {
    return ErrnoToStatus(errno, old + "-wal");
  }
  unlink((old + "-shm").c_str());
  const hoist::UniqueFd top(
      open(path_.c_str(), O_RDONLY | O_DIRECTORY | O_CLOEXEC));
  if (!top.valid() || fsync(top.get()) != 0) return ErrnoToStatus(errno, path_);
  if (rename(new_catalogue_path().c_str(), old.c_str()) != 0) {
    return ErrnoToStatus(errno, old);
  }
  if (fsync(top.get()) != 0) return ErrnoToStatus(errno, path_);
  return kept;
}

std::map<SpillId, SegmentDir::Places> SegmentDir::Files() const {
  std::map<SpillId, Places> files;
  for (const SpillId id : IdsIn(images_.get(), kPart)) files[id].part = true;
  for (const SpillId id : IdsIn(images_.get(), kImage)) files[id].image = true;
  for (const SpillId id : IdsIn(images_.get(), kRemoved)) {
    files[id].removed = true;
  }
  for (const SpillId id : IdsIn(quarantine_.get(), kImage)) {
    files[id].quarantined = true;
  }
  return files;
}

std::vector<SegmentDir::LostFile> SegmentDir::Lost() const {
  std::vector<LostFile> lost;
  for (const SpillId id : IdsIn(quarantine_.get(), kLost)) {
    LostFile file = {.id = id, .name = NameOf(id, kLost)};
    struct stat st = {};
    if (fstatat(quarantine_.get(), file.name.c_str(), &st,
                AT_SYMLINK_NOFOLLOW) == 0) {
      file.bytes = static_cast<uint64_t>(st.st_size);
    }
    const hoist::UniqueFd why(openat(quarantine_.get(),
                                     NameOf(id, ".why").c_str(),
                                     O_RDONLY | O_NOFOLLOW | O_CLOEXEC));
    const auto text = ReadStart(why.get(), kMostWhy);
    if (text.ok()) {
      file.why.assign(reinterpret_cast<const char*>(text->data()),
                      text->size());
      absl::StripTrailingAsciiWhitespace(&file.why);
    }
    lost.push_back(std::move(file));
  }
  std::sort(lost.begin(), lost.end(), [](const auto& one, const auto& other) {
    return one.id < other.id;
  });
  return lost;
}

absl::StatusOr<SegmentFile> SegmentDir::CreatePart(SpillId id, uint64_t bytes) {
  const std::string name = NameOf(id, kPart);
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
  unlinkat(images_.get(), NameOf(id, kPart).c_str(), 0);
}

absl::Status SegmentDir::Publish(SpillId id) {
  if (renameat(images_.get(), NameOf(id, kPart).c_str(), images_.get(),
               NameOf(id, kImage).c_str()) != 0) {
    return ErrnoToStatus(errno, ImagePath(id));
  }
  if (fsync(images_.get()) != 0) return ErrnoToStatus(errno, path_ + "/images");
  return absl::OkStatus();
}

absl::StatusOr<SegmentFile> SegmentDir::OpenImage(SpillId id,
                                                  uint64_t bytes) const {
  SegmentFile file;
  file.fd = hoist::UniqueFd(openat(images_.get(), NameOf(id, kImage).c_str(),
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

absl::StatusOr<FoundSegment> SegmentDir::ReadHeader(SpillId id,
                                                    bool quarantined) const {
  const std::string name = NameOf(id, kImage);
  const hoist::UniqueFd fd(
      openat(quarantined ? quarantine_.get() : images_.get(), name.c_str(),
             O_RDONLY | O_NOFOLLOW | O_NONBLOCK | O_CLOEXEC));
  if (!fd.valid()) return ErrnoToStatus(errno, name);
  struct stat st = {};
  if (fstat(fd.get(), &st) != 0) return ErrnoToStatus(errno, name);
  if (!S_ISREG(st.st_mode)) return absl::DataLossError("it is no file");
  const auto file_bytes = static_cast<uint64_t>(st.st_size);
  if (file_bytes < SegmentHeaderBytes(0)) {
    return absl::OutOfRangeError(
        absl::StrCat("it has ", file_bytes, " bytes, and no whole header"));
  }
  HOIST_ASSIGN_OR_RETURN(const auto start,
                         ReadStart(fd.get(), kSegmentHeaderStart));
  HOIST_ASSIGN_OR_RETURN(const uint64_t bytes,
                         FindSegmentHeaderBytes(start, file_bytes));
  HOIST_ASSIGN_OR_RETURN(const auto header, ReadStart(fd.get(), bytes));
  return FindSegmentHeader(header);
}

absl::Status SegmentDir::DropImage(SpillId id, bool quarantined) {
  const int dir = quarantined ? quarantine_.get() : images_.get();
  HOIST_RETURN_IF_ERROR(Unlink(dir, NameOf(id, kImage)));
  if (fsync(dir) != 0) return ErrnoToStatus(errno, path_);
  return absl::OkStatus();
}

absl::Status SegmentDir::BeginRemoval(SpillId id) {
  const std::string removed = NameOf(id, kRemoved);
  bool any = false;
  for (const int from : {images_.get(), quarantine_.get()}) {
    if (renameat(from, NameOf(id, kImage).c_str(), images_.get(),
                 removed.c_str()) == 0) {
      any = true;
    } else if (errno != ENOENT) {
      return ErrnoToStatus(errno, ImagePath(id));
    }
  }
  // The row may have to wait: something must say that it goes.
  if (!any) {
    const hoist::UniqueFd marker(
        openat(images_.get(), removed.c_str(),
               O_WRONLY | O_CREAT | O_NOFOLLOW | O_CLOEXEC, 0600));
    if (!marker.valid()) return ErrnoToStatus(errno, ImagePath(id));
  }
  if (fsync(images_.get()) != 0 || fsync(quarantine_.get()) != 0) {
    return ErrnoToStatus(errno, ImagePath(id));
  }
  return absl::OkStatus();
}

void SegmentDir::FreeRemoved(SpillId id) {
  const hoist::UniqueFd fd(openat(images_.get(), NameOf(id, kRemoved).c_str(),
                                  O_WRONLY | O_NOFOLLOW | O_CLOEXEC));
  // Where it fails the space is free later, with the file.
  if (fd.valid()) static_cast<void>(ftruncate(fd.get(), 0) == 0);
}

void SegmentDir::EndRemoval(SpillId id) {
  // One that stays is found again at the next start.
  Unlink(images_.get(), NameOf(id, kRemoved)).IgnoreError();
}

absl::Status SegmentDir::Quarantine(SpillId id) {
  const std::string name = NameOf(id, kImage);
  if (renameat(images_.get(), name.c_str(), quarantine_.get(), name.c_str()) !=
          0 &&
      errno != ENOENT) {
    return ErrnoToStatus(errno, ImagePath(id));
  }
  return absl::OkStatus();
}

absl::Status SegmentDir::PutAside(SpillId id, bool quarantined,
                                  const std::string& why) {
  // The reason is for people: without room for it the file is kept all the
  // same.
  const hoist::UniqueFd text(
      openat(quarantine_.get(), NameOf(id, ".why").c_str(),
             O_WRONLY | O_CREAT | O_TRUNC | O_NOFOLLOW | O_CLOEXEC, 0600));
  if (text.valid()) {
    const std::string line = absl::StrCat(why, "\n");
    static_cast<void>(write(text.get(), line.data(), line.size()) >= 0);
  }
  // No other file has had this id: new ones are above those of lost files.
  if (renameat(quarantined ? quarantine_.get() : images_.get(),
               NameOf(id, kImage).c_str(), quarantine_.get(),
               NameOf(id, kLost).c_str()) != 0) {
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
