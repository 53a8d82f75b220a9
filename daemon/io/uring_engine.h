#ifndef HOIST_DAEMON_IO_URING_ENGINE_H_
#define HOIST_DAEMON_IO_URING_ENGINE_H_

#include <cstdint>
#include <memory>
#include <vector>

#include "absl/status/statusor.h"
#include "daemon/io/io_queue.h"
#include "daemon/io/uring_worker.h"
#include "daemon/types/io_engine.h"

namespace hoistd {

// IoEngine by io_uring: O_DIRECT into registered bounce memory, or straight
// into destinations with the disk's alignment.
//
// Threads:  thread-safe; joins its workers in the destructor.
// Bounds:   `bounce_bytes` in flight in all, in pieces of 1 MiB.
class UringEngine final : public IoEngine {
 public:
  struct Options {
    uint64_t bounce_bytes = uint64_t{64} << 20;
    int workers = 1;
  };

  // PermissionDenied, Unimplemented: this kernel or container has no io_uring.
  static absl::StatusOr<std::unique_ptr<UringEngine>> Create(
      const Options& options);
  ~UringEngine() override;

  void Read(ReadRequest request, Done done) override;
  void Write(WriteRequest request, Done done) override;
  IoInfo info() const override;

 private:
  UringEngine();
  void WakeAll();

  IoQueue queue_;
  std::vector<std::unique_ptr<UringWorker>> workers_;
};

}  // namespace hoistd

#endif  // HOIST_DAEMON_IO_URING_ENGINE_H_
