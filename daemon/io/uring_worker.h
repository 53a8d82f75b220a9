#ifndef HOIST_DAEMON_IO_URING_WORKER_H_
#define HOIST_DAEMON_IO_URING_WORKER_H_

#include <liburing.h>

#include <cstddef>
#include <cstdint>
#include <memory>
#include <string>
#include <thread>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "daemon/io/aligned_buffer.h"
#include "daemon/io/io_queue.h"
#include "daemon/io/piece_io.h"
#include "hoist/shared/unique_fd.h"

namespace hoistd {

struct UringSetup {
  bool registered_buffers = false;
  std::vector<std::string> fallbacks;
};

// One thread with a ring of its own. It takes pieces from the engine's queue,
// and keeps as many in flight as it has bounce chunks. It copies out of full
// chunks while the disk fills the others.
//
// Threads:  Wake from any. The ring belongs to the worker's thread alone:
//           SINGLE_ISSUER and DEFER_TASKRUN require it.
// Owns:     its thread, ring and bounce memory. Borrows the queue, which must
//           be closed, and the worker woken, before the destructor joins.
class UringWorker {
 public:
  struct Options {
    uint64_t chunk_bytes = 0;  // The queue's piece size.
    unsigned chunks = 0;
  };

  // Returns once the ring works. An error names the call that failed.
  static absl::StatusOr<std::unique_ptr<UringWorker>> Start(
      IoQueue& queue, const Options& options);
  ~UringWorker();

  // To be called after a Push or Close of the queue.
  void Wake();
  const UringSetup& setup() const { return setup_; }

 private:
  UringWorker(IoQueue& queue, const Options& options);

  absl::Status SetUp();
  // A no-op: a seccomp profile may allow io_uring_setup, not io_uring_enter.
  absl::Status UseOnce();
  void Run();
  // Starts pieces until the queue is empty or no slot is free.
  void Fill();
  void Issue(size_t slot);
  io_uring_sqe* NextSqe();
  void ArmWake();
  void SubmitAndWait();
  // Handles only a few completions, so that the disk gets new work between the
  // copies.
  void Reap();
  void Complete(size_t slot, int result);

  IoQueue& queue_;
  const Options options_;
  hoist::UniqueFd wake_;
  UringSetup setup_;
  AlignedBuffer arena_;
  io_uring ring_ = {};
  bool wake_armed_ = false;
  std::vector<PieceIo> pieces_;  // One per slot; slot i has chunk i.
  std::vector<size_t> free_slots_;
  std::thread thread_;
};

}  // namespace hoistd

#endif  // HOIST_DAEMON_IO_URING_WORKER_H_
