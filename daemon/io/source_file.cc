#include "daemon/io/source_file.h"

#include <fcntl.h>
#include <sys/stat.h>
#include <unistd.h>

#include <cerrno>
#include <utility>

#include "absl/strings/str_cat.h"
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
  auto reopened = Reopen(fd.get(), O_RDONLY);
  if (reopened.ok()) {
    file.fd_ = *std::move(reopened);
    HOIST_RETURN_IF_ERROR(Annotate(file.ChooseMode(options), file.name_));
    return file;
  }
  const std::string why =
      absl::StrCat(file.name_, ": hoistd may not open the file itself (",
                   reopened.status().message(), ")");
  if ((fcntl(fd.get(), F_GETFL) & O_DIRECT) != 0) {
    return absl::InvalidArgumentError(absl::StrCat(
        why, ", and the descriptor has O_DIRECT: open it without"));
  }
  if (options.mode == ReadMode::kDirect) {
    return absl::FailedPreconditionError(why);
  }
  file.fd_ = std::move(fd);
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
  if (options.mode == ReadMode::kBuffered) return absl::OkStatus();
  const bool must = options.mode == ReadMode::kDirect;
  if (!must && (IsBufferedFileSystem(fd_.get()) ||
                (bytes() > 0 &&
                 CachedShare(fd_.get(), bytes()) >= options.cached_share))) {
    return absl::OkStatus();
  }
  auto direct = OpenDirect(fd_.get(), O_RDONLY);
  if (direct.ok()) {
    direct_fd_ = *std::move(direct);
  } else if (must) {
    return absl::FailedPreconditionError(direct.status().message());
  }
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
