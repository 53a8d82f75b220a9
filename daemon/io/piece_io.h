#ifndef HOIST_DAEMON_IO_PIECE_IO_H_
#define HOIST_DAEMON_IO_PIECE_IO_H_

#include <sys/uio.h>

#include <cstddef>
#include <cstdint>
#include <optional>
#include <span>
#include <utility>
#include <vector>

#include "absl/status/status.h"
#include "daemon/io/io_queue.h"

namespace hoistd {

// The system call that a piece needs next.
struct IoCall {
  enum class Kind { kNone, kRead, kReadVector, kWrite, kSync };

  Kind kind = Kind::kNone;
  int fd = -1;
  uint64_t offset = 0;
  std::span<std::byte> to;          // kRead.
  bool bounced = false;             // kRead: `to` is in the bounce memory.
  std::span<const std::byte> from;  // kWrite.
  std::span<const iovec> into;      // kReadVector.
};

// Carries out one piece in one or more system calls: widens direct reads to the
// alignment, continues after short ones, translates errors, and copies out of
// the bounce memory. It makes no system call itself, so that both engines
// behave the same and tests need no disk.
//
// Threads:  one at a time.
// Owns:     the piece. Borrows the bounce memory, which it uses until Result
//           has returned a status.
class PieceIo {
 public:
  PieceIo() = default;
  // `bounce` has the queue's piece size, 4 KiB aligned.
  PieceIo(Piece piece, std::span<std::byte> bounce);

  // Valid until the next call of Result. kNone: there is nothing to do.
  IoCall Next();
  // `result`: the call's result, or -errno. nullopt: make the call of Next().
  // Otherwise the piece is over, with this status.
  std::optional<absl::Status> Result(int64_t result);

  Piece TakePiece() { return std::move(piece_); }

 private:
  std::optional<absl::Status> ReadResult(uint64_t bytes);
  std::optional<absl::Status> WriteResult(uint64_t bytes);
  void ListDestinations();
  void CopyOut() const;
  absl::Status EndsEarly() const;

  Piece piece_;
  std::span<std::byte> bounce_;
  bool bounced_ = false;
  uint64_t begin_ = 0;  // File offset of the read's first byte.
  uint64_t need_ = 0;   // Bytes from `begin_` that the piece needs.
  uint64_t want_ = 0;   // Bytes to request: `need_`, aligned if bounced.
  uint64_t got_ = 0;    // Bytes read or written so far.
  int retries_ = 0;
  std::vector<iovec> into_;
};

}  // namespace hoistd

#endif  // HOIST_DAEMON_IO_PIECE_IO_H_
