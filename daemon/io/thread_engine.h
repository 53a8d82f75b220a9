#ifndef HOIST_DAEMON_IO_THREAD_ENGINE_H_
#define HOIST_DAEMON_IO_THREAD_ENGINE_H_

#include <memory>
#include <thread>
#include <vector>

#include "absl/status/statusor.h"
#include "daemon/io/aligned_buffer.h"
#include "daemon/io/io_queue.h"
#include "daemon/types/io_engine.h"

namespace hoistd {

// IoEngine by preadv and pwrite, on threads that share each request.
//
// The fallback without io_uring, and the faster engine for files in the page
// cache: their buffered read is a memcpy, which io_uring runs inline on one
// thread.
//
// Threads:  thread-safe; joins its own in the destructor.
// Bounds:   `threads` pieces of 1 MiB in flight, with as much bounce memory.
class ThreadEngine final : public IoEngine {
 public:
  // `threads` > 0. ResourceExhausted: no memory for the bounce buffers.
  static absl::StatusOr<std::unique_ptr<ThreadEngine>> Create(int threads);
  ~ThreadEngine() override;

  void Read(ReadRequest request, Done done) override;
  void Write(WriteRequest request, Done done) override;
  IoInfo info() const override;

 private:
  ThreadEngine();
  void Work(AlignedBuffer bounce);

  IoQueue queue_;
  std::vector<std::thread> threads_;
};

}  // namespace hoistd

#endif  // HOIST_DAEMON_IO_THREAD_ENGINE_H_
