#ifndef HOIST_DAEMON_IO_SOURCE_FILE_H_
#define HOIST_DAEMON_IO_SOURCE_FILE_H_

#include <cstdint>
#include <string>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "daemon/core/io_engine.h"
#include "daemon/core/tensor.h"
#include "hoist/shared/unique_fd.h"

namespace hoistd {

enum class ReadMode { kAuto, kDirect, kBuffered };

struct SourceFileOptions {
  // kDirect: an error where the file cannot be read so.
  ReadMode mode = ReadMode::kAuto;
  // kAuto: buffered where this share of the file is in the page cache.
  double cached_share = 0.5;
};

// A model's file, opened by a client and handed over as a descriptor: that the
// client could open it is its right to have it read.
//
// The daemon reopens it (/proc/self/fd), so that neither O_DIRECT here nor
// what the client later does to its own description reaches the other. Where
// its own user may not open the file, the client's description serves, and
// reads are buffered: setting O_DIRECT on it would change the client's reads.
//
// Threads:  immutable after Open.
// Owns:     the descriptors. Move-only.
class SourceFile {
 public:
  // InvalidArgument: not a regular file open for reading. FailedPrecondition:
  // direct reads were asked for and cannot be had.
  static absl::StatusOr<SourceFile> Open(hoist::UniqueFd fd, std::string name,
                                         const SourceFileOptions& options);

  // For error messages; nothing is opened by it.
  const std::string& name() const { return name_; }
  // As of Open. `header_hash` is zero: whoever reads the header fills it into
  // a copy.
  const FileIdentity& identity() const { return identity_; }
  uint64_t bytes() const { return identity_.size; }
  // Valid while this object lives.
  IoFile io() const;
  bool direct() const { return direct_fd_.valid(); }
  // Why reads are direct or buffered, for logs and `status`.
  const std::string& mode_reason() const { return mode_reason_; }

  // DataLoss: size, times or inode are no longer those of Open.
  absl::Status CheckUnchanged() const;
  // Blocks. DataLoss: the file ends before `offset + bytes`. The caller bounds
  // `bytes`.
  absl::StatusOr<std::string> ReadPrefix(uint64_t offset, uint64_t bytes) const;

 private:
  SourceFile() = default;
  absl::Status ChooseMode(const SourceFileOptions& options);

  hoist::UniqueFd fd_;
  hoist::UniqueFd direct_fd_;
  bool reopened_ = false;  // `fd_` is a description of our own.
  std::string name_;
  FileIdentity identity_;
  std::string mode_reason_;
};

}  // namespace hoistd

#endif  // HOIST_DAEMON_IO_SOURCE_FILE_H_
