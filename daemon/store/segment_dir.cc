#include "daemon/store/segment_dir.h"

#include <fcntl.h>
#include <sys/file.h>
#include <sys/stat.h>
#include <sys/statvfs.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstdio>
#include <filesystem>
#include <iterator>
#include <optional>
#include <system_error>
#include <utility>

#include "absl/strings/ascii.h"
#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/string_view.h"
#include "absl/strings/strip.h"
#include "daemon/base/status.h"
#include "daemon/io/direct_probe.h"
#include "daemon/store/dir_files.h"

namespace hoistd {
namespace {

constexpr absl::string_view kPart = ".part";
constexpr absl::string_view kImage = ".img";
constexpr absl::string_view kWhy = ".why";

// The largest valid id, so that id + 1 cannot overflow.
constexpr uint64_t kMaxId = uint64_t{1} << 62;
constexpr size_t kMostWhy = 500;
// Most headers are no longer.
constexpr uint64_t kFirstRead = 4096;

std::string NameOf(SpillId id, absl::string_view suffix) {
  return absl::StrCat(id.number(), suffix);
}

// The id in the name of a file with that suffix.
std::optional<SpillId> IdIn(absl::string_view name, absl::string_view suffix) {
  absl::string_view stem = name;
  uint64_t number = 0;
  if (!absl::ConsumeSuffix(&stem, suffix) || !absl::SimpleAtoi(stem, &number) ||
      number == 0 || number >= kMaxId ||
      NameOf(SpillId(number), suffix) != name) {
    return std::nullopt;
  }
  return SpillId(number);
}

// Replaces the errno's own code: an unreadable disk does not prove damage.
absl::Status Unreadable(int error) {
  return absl::UnavailableError(ErrnoToStatus(error, "read").message());
}

absl::StatusOr<FoundSegment> ReadHeaderOf(int fd, uint64_t file_bytes) {
  const auto read = [fd](uint64_t bytes) {
    auto start = ReadStart(fd, bytes);
    if (start.ok()) return start;
    start = absl::UnavailableError(start.status().message());
    return start;
  };
  HOIST_ASSIGN_OR_RETURN(auto header, read(kFirstRead));
  if (header.size() < kSegmentHeaderStart) {
    return absl::DataLossError(
        absl::StrCat("it has ", file_bytes, " bytes, and no whole header"));
  }
  HOIST_ASSIGN_OR_RETURN(
      const uint64_t bytes,
      FindSegmentHeaderBytes(std::span(header).first(kSegmentHeaderStart),
                             file_bytes));
  if (bytes > header.size()) {
    HOIST_ASSIGN_OR_RETURN(header, read(bytes));
  }
  header.resize(std::min<uint64_t>(bytes, header.size()));
  return FindSegmentHeader(header);
}

void OpenDirectWhereItPays(SegmentFile& file, int access) {
  if (IsBufferedFileSystem(file.fd.get())) return;
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
  HOIST_ASSIGN_OR_RETURN(dir.top_, MakeDir(path));
  const int top = dir.top_.get();
  dir.lock_ = hoist::UniqueFd(
      openat(top, "lock", O_RDWR | O_CREAT | O_NOFOLLOW | O_CLOEXEC, 0600));
  if (!dir.lock_.valid()) return ErrnoToStatus(errno, path + "/lock");
  if (flock(dir.lock_.get(), LOCK_EX | LOCK_NB) != 0) {
    if (errno != EWOULDBLOCK) return ErrnoToStatus(errno, path + "/lock");
    return absl::FailedPreconditionError(absl::StrCat(
        path, " is in use by another hoistd: give this one its own directory"));
  }
  HOIST_ASSIGN_OR_RETURN(dir.images_, MakeDir(path + "/images"));
  HOIST_ASSIGN_OR_RETURN(dir.quarantine_, MakeDir(path + "/quarantine"));
  HOIST_RETURN_IF_ERROR(MakeDir(dir.models_path()).status());
  // The new directories must survive a power cut, as the images in them do.
  HOIST_RETURN_IF_ERROR(Annotate(SyncDir(top), path));
  return dir;
}

std::string SegmentDir::ImagePath(SpillId id) const {
  return path_ + "/images/" + NameOf(id, kImage);
}

absl::StatusOr<SegmentDir::Listing> SegmentDir::List() const {
  Listing listing;
  const auto note = [&listing](SpillId id) {
    listing.last_id = std::max(listing.last_id, id.number());
  };
  const auto top = FilesOf(top_.get());
  if (!top.ok()) return Annotate(top.status(), path_);
  for (const std::string& name : *top) {
    if (name != "lock") listing.strays.push_back(name);
  }
  const auto images = FilesOf(images_.get());
  if (!images.ok()) return Annotate(images.status(), path_ + "/images");
  for (const std::string& name : *images) {
    if (const auto id = IdIn(name, kImage)) {
      listing.images.push_back(*id);
      note(*id);
    } else if (const auto part = IdIn(name, kPart)) {
      listing.parts.push_back(*part);
      note(*part);
    } else {
      listing.strays.push_back("images/" + name);
    }
  }
  const auto aside = FilesOf(quarantine_.get());
  if (!aside.ok()) return Annotate(aside.status(), path_ + "/quarantine");
  for (const std::string& name : *aside) {
    if (const auto id = IdIn(name, kImage)) {
      listing.quarantined.push_back(*id);
      note(*id);
    } else if (const auto why = IdIn(name, kWhy)) {
      listing.reasons.insert(*why);
      note(*why);
    } else {
      listing.strays.push_back("quarantine/" + name);
    }
  }
  std::sort(listing.images.begin(), listing.images.end());
  std::sort(listing.quarantined.begin(), listing.quarantined.end());
  for (const SpillId id : listing.quarantined) listing.reasons.erase(id);
  return listing;
}

void SegmentDir::Sweep(const Listing& listing) {
  // The next start sweeps those that could not be deleted.
  for (const SpillId id : listing.parts) DropPart(id);
  for (const SpillId id : listing.reasons) {
    if (std::binary_search(listing.images.begin(), listing.images.end(), id)) {
      continue;
    }
    Unlink(quarantine_.get(), NameOf(id, kWhy)).IgnoreError();
  }
}

SegmentDir::ReadSegment SegmentDir::ReadHeader(SpillId id, Place place) const {
  ReadSegment read;
  const hoist::UniqueFd fd(
      openat(FdOf(place), NameOf(id, kImage).c_str(),
             O_RDONLY | O_NOFOLLOW | O_NONBLOCK | O_CLOEXEC));
  struct stat st = {};
  if (!fd.valid() || fstat(fd.get(), &st) != 0) {
    read.found = Unreadable(errno);
    return read;
  }
  if (!S_ISREG(st.st_mode)) {
    read.found = absl::DataLossError("it is no file");
    return read;
  }
  // No readahead: only the first page of an image of gigabytes is needed.
  posix_fadvise(fd.get(), 0, 0, POSIX_FADV_RANDOM);
  read.file_bytes = static_cast<uint64_t>(st.st_size);
  read.found = ReadHeaderOf(fd.get(), read.file_bytes);
  return read;
}

std::string SegmentDir::ReasonOf(SpillId id) const {
  const hoist::UniqueFd fd(openat(quarantine_.get(), NameOf(id, kWhy).c_str(),
                                  O_RDONLY | O_NOFOLLOW | O_CLOEXEC));
  if (!fd.valid()) return "";
  const auto text = ReadStart(fd.get(), kMostWhy);
  if (!text.ok()) return "";
  std::string why(reinterpret_cast<const char*>(text->data()), text->size());
  absl::StripAsciiWhitespace(&why);
  return why;
}

absl::StatusOr<SegmentFile> SegmentDir::CreatePart(SpillId id, uint64_t bytes) {
  const std::string name = NameOf(id, kPart);
  SegmentFile file;
  file.bytes = bytes;
  file.fd = hoist::UniqueFd(
      openat(images_.get(), name.c_str(),
             O_RDWR | O_CREAT | O_EXCL | O_NOFOLLOW | O_CLOEXEC, 0600));
  if (!file.fd.valid()) return ErrnoToStatus(errno, path_ + "/images/" + name);
  // Detects a full disk now, not in the middle of the write, unless the file
  // system cannot reserve space.
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
  // The next start sweeps a file that could not be deleted.
  Unlink(images_.get(), NameOf(id, kPart)).IgnoreError();
}

absl::Status SegmentDir::Publish(SpillId id) {
  if (renameat(images_.get(), NameOf(id, kPart).c_str(), images_.get(),
               NameOf(id, kImage).c_str()) != 0) {
    return ErrnoToStatus(errno, ImagePath(id));
  }
  return Annotate(SyncDir(images_.get()), path_ + "/images");
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

absl::Status SegmentDir::Remove(SpillId id) {
  const std::string image = NameOf(id, kImage);
  for (const int dir : {images_.get(), quarantine_.get()}) {
    const absl::Status gone = Unlink(dir, image);
    if (!gone.ok()) return Annotate(gone, path_);
  }
  // Last: a reason without its image is swept, but an image without its reason
  // is listed.
  return Annotate(Unlink(quarantine_.get(), NameOf(id, kWhy)), path_);
}

absl::Status SegmentDir::SyncRemoval(bool quarantined) {
  if (quarantined) return SyncQuarantine();
  return Annotate(SyncDir(images_.get()), path_);
}

absl::Status SegmentDir::Quarantine(SpillId id, const std::string& why) {
  const std::string reason = NameOf(id, kWhy);
  WriteFile(quarantine_.get(), reason, why + "\n").IgnoreError();
  const std::string name = NameOf(id, kImage);
  if (renameat(images_.get(), name.c_str(), quarantine_.get(), name.c_str()) !=
      0) {
    if (errno != ENOENT) return ErrnoToStatus(errno, ImagePath(id));
    Unlink(quarantine_.get(), reason).IgnoreError();
  }
  return absl::OkStatus();
}

absl::Status SegmentDir::SyncQuarantine() {
  HOIST_RETURN_IF_ERROR(Annotate(SyncDir(quarantine_.get()), path_));
  return Annotate(SyncDir(images_.get()), path_);
}

std::string SegmentDir::FreeText() const {
  struct statvfs fs = {};
  if (fstatvfs(images_.get(), &fs) != 0) return "";
  return absl::StrCat(", where ", uint64_t{fs.f_bavail} * fs.f_frsize,
                      " are free");
}

}  // namespace hoistd
