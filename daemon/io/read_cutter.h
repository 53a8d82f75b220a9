#ifndef HOIST_DAEMON_IO_READ_CUTTER_H_
#define HOIST_DAEMON_IO_READ_CUTTER_H_

#include <cstddef>
#include <cstdint>
#include <optional>
#include <vector>

#include "daemon/types/io_engine.h"

namespace hoistd {

// O_DIRECT's alignment of address, length and offset. If a file system needs a
// larger one, its files are read through the page cache (source_file.h).
inline constexpr uint64_t kDirectAlignment = 4096;

constexpr uint64_t DirectDown(uint64_t value) {
  return value & ~(kDirectAlignment - 1);
}
constexpr uint64_t DirectUp(uint64_t value) {
  return DirectDown(value + kDirectAlignment - 1);
}

// A read, usually of one system call.
struct ReadPiece {
  uint64_t offset = 0;  // In the file.
  uint64_t bytes = 0;
  std::vector<Scatter> into;  // Their sum is `bytes`; null: skipped.
  // Direct I/O may read straight into the one destination.
  bool straight = false;
};

// Cuts a request into pieces, in file order. Pure.
//
// Gaps of 64 KiB or more, and gaps at either end, are not read, so a file's end
// within one goes unnoticed. Smaller gaps are read: one larger read is cheaper
// than two.
//
// Bounds:   a piece has at most `piece_bytes` bytes (a multiple of 4 KiB), and
//           at most 1,024 destinations (IOV_MAX). For a direct request, that
//           includes its ends, moved out to the direct alignment.
class ReadCutter {
 public:
  ReadCutter() = default;
  ReadCutter(ReadRequest request, uint64_t piece_bytes);

  // nullopt: everything has been cut.
  std::optional<ReadPiece> Next();

 private:
  // Moves the cursor past empty and skipped destinations.
  void SkipGap();
  bool CanGoStraight() const;
  uint64_t left() const { return into_[index_].bytes - used_; }
  void Advance(uint64_t bytes);

  std::vector<Scatter> into_;
  uint64_t piece_bytes_ = 0;
  bool direct_ = false;
  uint64_t offset_ = 0;  // The cursor's, in the file.
  size_t index_ = 0;     // In `into_`.
  uint64_t used_ = 0;    // Bytes of into_[index_] that are cut already.
};

}  // namespace hoistd

#endif  // HOIST_DAEMON_IO_READ_CUTTER_H_
