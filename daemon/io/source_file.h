#ifndef HOIST_DAEMON_IO_SOURCE_FILE_H_
#define HOIST_DAEMON_IO_SOURCE_FILE_H_

#include <cstdint>
#include <optional>
#include <string>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "daemon/model/tensor.h"
#include "daemon/types/ids.h"
#include "daemon/types/io_engine.h"
#include "hoist/shared/unique_fd.h"

namespace hoistd {

enum class ReadMode { kAuto, kDirect, kBuffered };

struct SourceFileOptions {
  // kDirect: an error if direct reads are unavailable.
  ReadMode mode = ReadMode::kAuto;
  // kAuto: buffered if at least this share of the file is in the page cache.
  double cached_share = 0.5;
};

// A model's file, opened by a client and passed as a descriptor. The client's
// ability to open it is its permission to have it read.
//
// hoistd reopens it (/proc/self/fd), so that O_DIRECT here and the client's
// later changes to its own description do not affect each other. If hoistd's
// user may not open the file, hoistd uses the client's description with
// buffered reads: setting O_DIRECT on it would change the client's reads.
//
// A file whose file system may hang is parked (daemon/io_helper): the
// descriptor is a socket that keeps the file, and only helpers look into it.
//
// Threads:  immutable after Open.
// Owns:     the descriptors. Move-only.
class SourceFile {
 public:
  // InvalidArgument: not a regular file open for reading. FailedPrecondition:
  // direct reads were requested, and are unavailable.
  static absl::StatusOr<SourceFile> Open(hoist::UniqueFd fd, std::string name,
                                         const SourceFileOptions& options);

  // Opens a file that another process registered. Reads report a change since
  // then.
  static absl::StatusOr<SourceFile> OpenAgain(hoist::UniqueFd fd,
                                              std::string name,
                                              const FileIdentity& identity,
                                              const SourceFileOptions& options);

  // A file that an I/O helper has opened, and continues to read for `owner`.
  static SourceFile Parked(hoist::UniqueFd parked, std::string name,
                           const FileIdentity& identity, User owner);

  // For error messages only; never opened.
  const std::string& name() const { return name_; }
  // As of Open. `header_hash` is zero: the header's reader sets it in a copy.
  const FileIdentity& identity() const { return identity_; }
  uint64_t bytes() const { return identity_.size; }
  // Valid while this object lives. Not for parked files.
  IoFile io() const;
  // The user whose helpers read it, if it is parked.
  const std::optional<User>& parked_for() const { return parked_for_; }
  // The parked file's socket; borrowed.
  int parked() const { return fd_.get(); }
  // The file, or that socket, for OpenAgain or Parked; borrowed.
  int fd() const { return fd_.get(); }
  bool direct() const { return direct_fd_.valid(); }

  // DataLoss: size, times or inode have changed since Open. Not for parked
  // files.
  absl::Status CheckUnchanged() const;
  // Blocks. DataLoss: the file ends before `offset + bytes`. The caller bounds
  // `bytes`. Not for parked files.
  absl::StatusOr<std::string> ReadPrefix(uint64_t offset, uint64_t bytes) const;
  // DataLoss: the range goes past bytes().
  absl::Status CheckRange(uint64_t offset, uint64_t bytes) const;

 private:
  SourceFile() = default;
  // Opens `direct_fd_`, if reads are to be direct. `fd_` is of our own.
  absl::Status ChooseMode(const SourceFileOptions& options);

  hoist::UniqueFd fd_;
  hoist::UniqueFd direct_fd_;
  std::string name_;
  FileIdentity identity_;
  std::optional<User> parked_for_;
};

// DataLoss: `fd` is not the file `was`, or the file has changed.
absl::Status CheckIdentity(int fd, const std::string& name,
                           const FileIdentity& was);

}  // namespace hoistd

#endif  // HOIST_DAEMON_IO_SOURCE_FILE_H_
