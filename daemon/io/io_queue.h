#ifndef HOIST_DAEMON_IO_IO_QUEUE_H_
#define HOIST_DAEMON_IO_IO_QUEUE_H_

#include <cstddef>
#include <cstdint>
#include <deque>
#include <memory>
#include <optional>
#include <span>

#include "absl/base/thread_annotations.h"
#include "absl/status/status.h"
#include "absl/synchronization/mutex.h"
#include "daemon/io/read_cutter.h"
#include "daemon/types/io_engine.h"

namespace hoistd {

struct IoJob;

// A part of a request that one worker carries out.
struct Piece {
  enum class Kind { kNothing, kRead, kWrite, kSync };

  Kind kind = Kind::kNothing;
  int fd = -1;
  bool direct = false;
  ReadPiece read;  // kRead.
  // kWrite.
  uint64_t offset = 0;
  std::span<const std::byte> from;
  // Shared by the pieces in flight and, until all is cut, the queue.
  std::shared_ptr<IoJob> job;
};

// Hands out requests, oldest first, in pieces, so that several workers share a
// large request.
//
// Threads:  thread-safe; `done` is called by Finish, with no lock held.
// Bounds:   pieces have at most `piece_bytes` bytes; requests are not bounded.
class IoQueue {
 public:
  // `piece_bytes` is a multiple of 4 KiB.
  explicit IoQueue(uint64_t piece_bytes) : piece_bytes_(piece_bytes) {}
  ~IoQueue();

  void Push(ReadRequest request, IoEngine::Done done) ABSL_LOCKS_EXCLUDED(mu_);
  void Push(WriteRequest request, IoEngine::Done done) ABSL_LOCKS_EXCLUDED(mu_);

  // nullopt: nothing to do now.
  std::optional<Piece> TryTake() ABSL_LOCKS_EXCLUDED(mu_);
  // Waits. nullopt: closed, and nothing is left to do.
  std::optional<Piece> Take() ABSL_LOCKS_EXCLUDED(mu_);

  // To be called once for each taken piece. An error drops the request's uncut
  // rest; `done` gets the request's first error.
  void Finish(Piece piece, const absl::Status& status) ABSL_LOCKS_EXCLUDED(mu_);

  // No Push may follow. Earlier requests are still handed out.
  void Close() ABSL_LOCKS_EXCLUDED(mu_);
  bool Drained() const ABSL_LOCKS_EXCLUDED(mu_);

 private:
  void PushJob(std::shared_ptr<IoJob> job) ABSL_LOCKS_EXCLUDED(mu_);
  std::optional<Piece> TakeLocked() ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu_);
  bool SomethingToDo() const ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu_) {
    return closed_ || !jobs_.empty();
  }

  const uint64_t piece_bytes_;
  mutable absl::Mutex mu_;
  bool closed_ ABSL_GUARDED_BY(mu_) = false;
  std::deque<std::shared_ptr<IoJob>> jobs_ ABSL_GUARDED_BY(mu_);  // Uncut.
};

}  // namespace hoistd

#endif  // HOIST_DAEMON_IO_IO_QUEUE_H_
