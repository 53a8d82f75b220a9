#include "daemon/io/source_file.h"

#include <fcntl.h>
#include <sys/stat.h>
#include <unistd.h>

#include <cerrno>
#include <utility>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "daemon/base/status.h"
#include "daemon/io/direct_probe.h"

namespace hoistd {
namespace {

int64_t Nanoseconds(const timespec& time) {
  return int64_t{time.tv_sec} * 1'000'000'000 + time.tv_nsec;
}

FileIdentity IdentityOf(const struct stat& st) {
  return {.device = st.st_dev,
          .inode = st.st_ino,
          .size = static_cast<uint64_t>(st.st_size),
          .mtime_ns = Nanoseconds(st.st_mtim),
          .ctime_ns = Nanoseconds(st.st_ctim)};
}

absl::Status CheckReadable(int fd, const std::string& name) {
  const int flags = fcntl(fd, F_GETFL);
  if (flags < 0) return ErrnoToStatus(errno, name);
  if ((flags & O_PATH) != 0 || (flags & O_ACCMODE) == O_WRONLY) {
    return absl::InvalidArgumentError(
        absl::StrCat(name, ": the descriptor is not open for reading"));
  }
  return absl::OkStatus();
}

}  // namespace

absl::StatusOr<SourceFile> SourceFile::Open(hoist::UniqueFd fd,
                                            std::string name,
                                            const SourceFileOptions& options) {
  HOIST_RETURN_IF_ERROR(CheckReadable(fd.get(), name));
  struct stat st = {};
  if (fstat(fd.get(), &st) != 0) return ErrnoToStatus(errno, name);
  if (!S_ISREG(st.st_mode)) {
    return absl::InvalidArgumentError(
        absl::StrCat(name, ": is not a regular file"));
  }
  SourceFile file;
  file.name_ = std::move(name);
  file.identity_ = IdentityOf(st);
  if (auto reopened = Reopen(fd.get(), O_RDONLY); reopened.ok()) {
    file.fd_ = *std::move(reopened);
    file.reopened_ = true;
  } else if ((fcntl(fd.get(), F_GETFL) & O_DIRECT) != 0) {
    return absl::InvalidArgumentError(
        absl::StrCat(file.name_, ": hoistd may not open the file itself (",
                     std::string(reopened.status().message()),
                     "), and the descriptor has O_DIRECT: open it without"));
  } else {
    file.fd_ = std::move(fd);
    file.mode_reason_ = std::string(reopened.status().message());
  }
  HOIST_RETURN_IF_ERROR(Annotate(file.ChooseMode(options), file.name_));
  return file;
}

absl::StatusOr<SourceFile> SourceFile::OpenAgain(
    hoist::UniqueFd fd, std::string name, const FileIdentity& identity,
    const SourceFileOptions& options) {
  HOIST_ASSIGN_OR_RETURN(SourceFile file,
                         Open(std::move(fd), std::move(name), options));
  file.identity_ = identity;
  file.identity_.header_hash = {};
  return file;
}

absl::Status SourceFile::ChooseMode(const SourceFileOptions& options) {
  if (options.mode == ReadMode::kBuffered) {
    mode_reason_ = "buffered: as configured";
    return absl::OkStatus();
  }
  const bool must = options.mode == ReadMode::kDirect;
  if (!reopened_) {
    mode_reason_ = absl::StrCat(
        "buffered: hoistd may not open the file itself: ", mode_reason_);
    return must ? absl::FailedPreconditionError(mode_reason_)
                : absl::OkStatus();
  }
  const std::string file_system = BufferedFileSystem(fd_.get());
  if (!must && !file_system.empty()) {
    mode_reason_ = absl::StrCat("buffered: the file is on ", file_system);
    return absl::OkStatus();
  }
  if (!must) {
    const double cached = CachedShare(fd_.get(), bytes());
    if (cached >= options.cached_share && bytes() > 0) {
      mode_reason_ = absl::StrFormat(
          "buffered: %.0f %% of the file is in the page cache", cached * 100);
      return absl::OkStatus();
    }
  }
  auto direct = OpenDirect(fd_.get(), O_RDONLY);
  if (!direct.ok()) {
    mode_reason_ = absl::StrCat("buffered: ", direct.status().message());
    return must ? absl::FailedPreconditionError(mode_reason_)
                : absl::OkStatus();
  }
  direct_fd_ = *std::move(direct);
  mode_reason_ = must ? "direct: as configured" : "direct";
  return absl::OkStatus();
}

IoFile SourceFile::io() const {
  return {.fd = fd_.get(), .direct_fd = direct_fd_.get(), .bytes = bytes()};
}

SourceFile SourceFile::Parked(hoist::UniqueFd parked, std::string name,
                              const FileIdentity& identity, User owner) {
  SourceFile file;
  file.fd_ = std::move(parked);
  file.name_ = std::move(name);
  file.identity_ = identity;
  file.mode_reason_ = "buffered: the file's file system may hang";
  file.parked_for_ = owner;
  return file;
}

absl::Status CheckIdentity(int fd, const std::string& name,
                           const FileIdentity& was) {
  struct stat st = {};
  if (fstat(fd, &st) != 0) return ErrnoToStatus(errno, name);
  const FileIdentity now = IdentityOf(st);
  if (now == was) return absl::OkStatus();
  std::string what = "its times differ";
  if (now.size != was.size) {
    what = absl::StrCat("it had ", was.size, " bytes and has ", now.size);
  }
  return absl::DataLossError(
      absl::StrCat(name, " changed since it was registered: ", what,
                   "; register the model again"));
}

absl::Status SourceFile::CheckUnchanged() const {
  return CheckIdentity(fd_.get(), name_, identity_);
}

absl::Status SourceFile::CheckRange(uint64_t offset, uint64_t bytes) const {
  if (offset <= this->bytes() && bytes <= this->bytes() - offset) {
    return absl::OkStatus();
  }
  return absl::DataLossError(
      absl::StrCat(name_, " ends at byte ", this->bytes(), "; ", bytes,
                   " bytes were expected at offset ", offset));
}

absl::StatusOr<std::string> SourceFile::ReadPrefix(uint64_t offset,
                                                   uint64_t bytes) const {
  HOIST_RETURN_IF_ERROR(CheckRange(offset, bytes));
  std::string text(bytes, '\0');
  uint64_t got = 0;
  while (got < bytes) {
    const ssize_t n = pread(fd_.get(), text.data() + got, bytes - got,
                            static_cast<off_t>(offset + got));
    if (n < 0 && errno == EINTR) continue;
    if (n < 0) return ErrnoToStatus(errno, name_);
    if (n == 0) {
      return absl::DataLossError(
          absl::StrCat(name_, " was cut short at byte ", offset + got));
    }
    got += static_cast<uint64_t>(n);
  }
  return text;
}

}  // namespace hoistd
