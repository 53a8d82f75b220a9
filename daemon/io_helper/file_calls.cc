#include "daemon/io_helper/file_calls.h"

#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstring>
#include <utility>

#include "absl/strings/str_cat.h"
#include "daemon/base/status.h"
#include "daemon/io/read_cutter.h"
#include "daemon/io_helper/helper_call.h"
#include "daemon/io_helper/parked_file.h"
#include "daemon/types/ranges.h"
#include "hoist/shared/mapping.h"

namespace hoistd {
namespace {

// Double buffering: the helper reads into one half while hoistd copies out of
// the other.
constexpr uint64_t kHalf = IoHelper::kBounceBytes / 2;

constexpr SourceFileOptions kBuffered = {.mode = ReadMode::kBuffered};

// ---- In the helper's process.

void OpenFile(hoist::Packet request, int line) {
  absl::StatusOr<hoist::UniqueFd> fd = Unpark(request.fds.at(0).get());
  if (!fd.ok()) return Tell(line, fd.status());
  const int given = fd->get();
  if (IsLocal(given)) {
    return Tell(line, absl::OkStatus(), {}, {&given, 1});
  }
  absl::StatusOr<SourceFile> file =
      SourceFile::Open(*std::move(fd), request.body, kBuffered);
  if (!file.ok()) return Tell(line, file.status());
  absl::StatusOr<hoist::UniqueFd> parked = Park(file->io().fd);
  if (!parked.ok()) return Tell(line, parked.status());
  std::string body;
  Pack(file->identity(), body);
  const int own = parked->get();
  Tell(line, absl::OkStatus(), body, {&own, 1});
}

absl::Status ReadRange(int fd, const ByteRange& range, std::byte* to) {
  uint64_t got = 0;
  while (got < range.bytes) {
    const ssize_t n = pread(fd, to + got, range.bytes - got,
                            static_cast<off_t>(range.offset + got));
    if (n < 0 && errno == EINTR) continue;
    if (n < 0) return ErrnoToStatus(errno, "read");
    if (n == 0) {
      return absl::DataLossError(
          absl::StrCat("the file ends at byte ", range.offset + got, "; ",
                       range.bytes - got, " more were expected"));
    }
    got += static_cast<uint64_t>(n);
  }
  return absl::OkStatus();
}

void ReadPrefix(hoist::Packet request, int line) {
  ByteRange range;
  std::string_view name = request.body;
  Unpack(name, range);
  absl::StatusOr<hoist::UniqueFd> fd = Unpark(request.fds.at(0).get());
  if (!fd.ok()) return Tell(line, fd.status());
  std::string text(range.bytes, '\0');
  const absl::Status read = ReadRange(
      fd->get(), range, std::as_writable_bytes(std::span<char>(text)).data());
  Tell(line, Annotate(read, std::string(name)), text);
}

// Sends one answer per range, and a last one: whether the file changed. Reuses
// a half once hoistd has acknowledged it.
void ReadRanges(hoist::Packet request, int line) {
  FileIdentity was;
  uint64_t count = 0;
  std::string_view rest = request.body;
  Unpack(rest, was);
  Unpack(rest, count);
  std::vector<ByteRange> ranges(count);
  for (ByteRange& range : ranges) Unpack(rest, range);
  absl::StatusOr<hoist::UniqueFd> fd = Unpark(request.fds.at(0).get());
  if (!fd.ok()) return Tell(line, fd.status());
  hoist::Result<hoist::Mapping> bounce =
      hoist::Mapping::OfFd(request.fds.at(1).get(), IoHelper::kBounceBytes,
                           hoist::Mapping::Access::kReadWrite);
  if (!bounce.ok()) return Tell(line, ToAbsl(bounce.status()));
  absl::Status read;
  for (size_t i = 0; i < ranges.size() && read.ok(); ++i) {
    if (i >= 2) HearMore(line);
    read =
        ReadRange(fd->get(), ranges[i], bounce.value().data() + i % 2 * kHalf);
    if (read.ok()) Tell(line, read);
  }
  // A change during the read mixes versions, and takes precedence over a read
  // error that it may have caused.
  absl::Status same = CheckIdentity(fd->get(), std::string(rest), was);
  Tell(line, same.ok() ? read : same);
}

// ---- In hoistd.

void CopyOut(const ReadPiece& piece, const std::byte* from) {
  for (const Scatter& scatter : piece.into) {
    if (scatter.to != nullptr) std::memcpy(scatter.to, from, scatter.bytes);
    from += scatter.bytes;
  }
}

}  // namespace

absl::StatusOr<SourceFile> OpenByHelper(IoHelper& run, User owner,
                                        hoist::UniqueFd parked,
                                        const std::string& name,
                                        const SourceFileOptions& options) {
  const int fd = parked.get();
  HOIST_ASSIGN_OR_RETURN(
      hoist::Packet answer,
      run.Call(&OpenFile, absl::StrCat("open ", name), name, {&fd, 1}));
  if (answer.fds.size() != 1) {
    return absl::InternalError("the helper's file is missing");
  }
  if (!IsParked(answer.fds[0].get())) {
    return SourceFile::Open(std::move(answer.fds[0]), name, options);
  }
  FileIdentity identity;
  std::string_view body = answer.body;
  if (!Unpack(body, identity)) {
    return absl::InternalError("the helper's answer is malformed");
  }
  return SourceFile::Parked(std::move(answer.fds[0]), name, identity, owner);
}

absl::StatusOr<std::string> ReadPrefixByHelper(IoHelper& run,
                                               const SourceFile& file,
                                               uint64_t offset,
                                               uint64_t bytes) {
  HOIST_RETURN_IF_ERROR(file.CheckRange(offset, bytes));
  std::string request;
  Pack(ByteRange{offset, bytes}, request);
  request.append(file.name());
  const int fd = file.parked();
  HOIST_ASSIGN_OR_RETURN(
      hoist::Packet answer,
      run.Call(&ReadPrefix, absl::StrCat("read the header of ", file.name()),
               request, {&fd, 1}));
  return std::move(answer.body);
}

absl::Status ReadByHelper(IoHelper& run, const SourceFile& file,
                          std::vector<ReadRequest> requests) {
  std::vector<ReadPiece> pieces;
  for (ReadRequest& request : requests) {
    request.file = IoFile();
    ReadCutter cutter(std::move(request), kHalf);
    while (std::optional<ReadPiece> piece = cutter.Next()) {
      pieces.push_back(*std::move(piece));
    }
  }
  HOIST_ASSIGN_OR_RETURN(const std::span<const std::byte> bounce, run.Bounce());
  std::string request;
  Pack(file.identity(), request);
  Pack(uint64_t{pieces.size()}, request);
  for (const ReadPiece& piece : pieces) {
    Pack(ByteRange{piece.offset, piece.bytes}, request);
  }
  request.append(file.name());
  const int fds[] = {file.parked(), run.bounce_fd()};
  absl::StatusOr<hoist::Packet> answer =
      run.Call(&ReadRanges, absl::StrCat("read ", file.name()), request, fds);
  for (size_t i = 0; i < pieces.size(); ++i) {
    if (!answer.ok()) return answer.status();
    CopyOut(pieces[i], bounce.data() + i % 2 * kHalf);
    if (i + 2 < pieces.size()) HOIST_RETURN_IF_ERROR(run.Say("next"));
    answer = run.Next();
  }
  return answer.status();
}

}  // namespace hoistd
