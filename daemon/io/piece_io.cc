#include "daemon/io/piece_io.h"

#include <algorithm>
#include <cerrno>
#include <cstring>
#include <utility>

#include "absl/strings/str_cat.h"
#include "daemon/base/status.h"

namespace hoistd {
namespace {

// EINTR and EAGAIN are transient in files; other descriptors may repeat them.
constexpr int kMaxRetries = 1000;

const char* NameOf(Piece::Kind kind) {
  switch (kind) {
    case Piece::Kind::kNothing:
      return "nothing";
    case Piece::Kind::kRead:
      return "read";
    case Piece::Kind::kWrite:
      return "write";
    case Piece::Kind::kSync:
      return "fdatasync";
  }
  return "?";
}

}  // namespace

PieceIo::PieceIo(Piece piece, std::span<std::byte> bounce)
    : piece_(std::move(piece)), bounce_(bounce) {
  if (piece_.kind != Piece::Kind::kRead) return;
  const ReadPiece& read = piece_.read;
  begin_ = read.offset;
  need_ = want_ = read.bytes;
  bounced_ = piece_.direct && !read.straight;
  if (bounced_) {
    begin_ = DirectDown(read.offset);
    need_ = read.offset - begin_ + read.bytes;
    want_ = DirectUp(need_);
  }
}

IoCall PieceIo::Next() {
  IoCall call;
  call.fd = piece_.fd;
  switch (piece_.kind) {
    case Piece::Kind::kNothing:
      break;
    case Piece::Kind::kSync:
      call.kind = IoCall::Kind::kSync;
      break;
    case Piece::Kind::kWrite:
      call.kind = IoCall::Kind::kWrite;
      call.offset = piece_.offset + got_;
      call.from = piece_.from.subspan(got_);
      break;
    case Piece::Kind::kRead:
      call.offset = begin_ + got_;
      if (bounced_ || piece_.read.straight) {
        call.kind = IoCall::Kind::kRead;
        call.bounced = bounced_;
        std::byte* to = bounced_ ? bounce_.data() : piece_.read.into[0].to;
        call.to = {to + got_, want_ - got_};
      } else {
        ListDestinations();
        call.kind = IoCall::Kind::kReadVector;
        call.into = into_;
      }
      break;
  }
  return call;
}

// A buffered read has no other use for the bounce memory, so its gaps go there.
// Each gap is smaller than that memory.
void PieceIo::ListDestinations() {
  into_.clear();
  uint64_t skip = got_;
  for (const Scatter& scatter : piece_.read.into) {
    const uint64_t passed = std::min(skip, scatter.bytes);
    skip -= passed;
    if (passed == scatter.bytes) continue;
    std::byte* to = scatter.to == nullptr ? bounce_.data() : scatter.to;
    into_.push_back({to + passed, scatter.bytes - passed});
  }
}

std::optional<absl::Status> PieceIo::Result(int64_t result) {
  if (result == -EINTR || result == -EAGAIN) {
    if (++retries_ < kMaxRetries) return std::nullopt;
  }
  if (result < 0) {
    return ErrnoToStatus(static_cast<int>(-result), NameOf(piece_.kind));
  }
  switch (piece_.kind) {
    case Piece::Kind::kRead:
      return ReadResult(static_cast<uint64_t>(result));
    case Piece::Kind::kWrite:
      return WriteResult(static_cast<uint64_t>(result));
    case Piece::Kind::kNothing:
    case Piece::Kind::kSync:
      break;
  }
  return absl::OkStatus();
}

std::optional<absl::Status> PieceIo::ReadResult(uint64_t bytes) {
  if (got_ + bytes >= need_) {
    if (bounced_) CopyOut();
    return absl::OkStatus();
  }
  // Direct I/O continues at aligned offsets only. No progress there means that
  // the file ends within the block.
  const uint64_t before = got_;
  got_ += bytes;
  if (piece_.direct) got_ = DirectDown(got_);
  if (got_ == before) {
    got_ = before + bytes % kDirectAlignment;
    return EndsEarly();
  }
  return std::nullopt;
}

std::optional<absl::Status> PieceIo::WriteResult(uint64_t bytes) {
  const uint64_t before = got_;
  got_ += bytes;
  if (got_ >= piece_.from.size()) return absl::OkStatus();
  if (piece_.direct) got_ = DirectDown(got_);
  if (got_ > before) return std::nullopt;
  return absl::ResourceExhaustedError(absl::StrCat(
      "write: the file takes nothing at offset ", piece_.offset + got_));
}

absl::Status PieceIo::EndsEarly() const {
  return absl::DataLossError(absl::StrCat("the file ends at or before byte ",
                                          begin_ + got_, "; bytes up to ",
                                          begin_ + need_, " were expected"));
}

void PieceIo::CopyOut() const {
  const std::byte* from = bounce_.data() + (piece_.read.offset - begin_);
  for (const Scatter& scatter : piece_.read.into) {
    if (scatter.to != nullptr) std::memcpy(scatter.to, from, scatter.bytes);
    from += scatter.bytes;
  }
}

}  // namespace hoistd
