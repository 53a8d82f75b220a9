#include "daemon/io/read_cutter.h"

#include <algorithm>
#include <utility>

namespace hoistd {
namespace {

constexpr uint64_t kMinGap = 64 << 10;
// Below this, a bounced piece with the neighbours' bytes is cheaper.
constexpr uint64_t kMinStraight = 64 << 10;
constexpr size_t kMaxDestinations = 1024;

}  // namespace

ReadCutter::ReadCutter(ReadRequest request, uint64_t piece_bytes)
    : into_(std::move(request.into)),
      piece_bytes_(piece_bytes),
      direct_(request.file.direct_fd >= 0),
      offset_(request.offset) {}

void ReadCutter::SkipGap() {
  while (index_ < into_.size() &&
         (into_[index_].to == nullptr || left() == 0)) {
    Advance(left());
  }
}

void ReadCutter::Advance(uint64_t bytes) {
  offset_ += bytes;
  used_ += bytes;
  if (used_ == into_[index_].bytes) {
    ++index_;
    used_ = 0;
  }
}

bool ReadCutter::CanGoStraight() const {
  const auto address = reinterpret_cast<uintptr_t>(into_[index_].to) + used_;
  return direct_ && offset_ % kDirectAlignment == 0 &&
         address % kDirectAlignment == 0 && left() >= kMinStraight;
}

std::optional<ReadPiece> ReadCutter::Next() {
  SkipGap();
  if (index_ == into_.size()) return std::nullopt;
  ReadPiece piece;
  piece.offset = offset_;
  if (CanGoStraight()) {
    piece.straight = true;
    piece.bytes = std::min(DirectDown(left()), piece_bytes_);
    piece.into.push_back({into_[index_].to + used_, piece.bytes});
    Advance(piece.bytes);
    return piece;
  }
  // A direct piece is read from the aligned offset below its first byte.
  const uint64_t limit =
      direct_ ? piece_bytes_ - offset_ % kDirectAlignment : piece_bytes_;
  while (index_ < into_.size() && piece.bytes < limit &&
         piece.into.size() < kMaxDestinations) {
    const Scatter& entry = into_[index_];
    if (entry.to == nullptr && left() >= kMinGap) break;
    const uint64_t take = std::min(left(), limit - piece.bytes);
    if (take > 0) {
      piece.into.push_back(
          {entry.to == nullptr ? nullptr : entry.to + used_, take});
      piece.bytes += take;
    }
    Advance(take);
  }
  while (piece.into.back().to == nullptr) {  // The first one is not null.
    piece.bytes -= piece.into.back().bytes;
    piece.into.pop_back();
  }
  return piece;
}

}  // namespace hoistd
