// The file I/O interface for core and mover. Implemented by daemon/io.
#ifndef HOIST_DAEMON_TYPES_IO_ENGINE_H_
#define HOIST_DAEMON_TYPES_IO_ENGINE_H_

#include <cstddef>
#include <cstdint>
#include <memory>
#include <span>
#include <string>
#include <vector>

#include "absl/functional/any_invocable.h"
#include "absl/status/status.h"

namespace hoistd {

// An open file. `direct_fd` is a second description of the file with O_DIRECT,
// or -1 for buffered I/O. Direct I/O may need bounce memory, since image
// offsets are not file offsets.
struct IoFile {
  int fd = -1;         // Borrowed.
  int direct_fd = -1;  // Borrowed.
  uint64_t bytes = 0;  // Size when it was opened.
};

// The target of the next bytes of a range. `to` null: they are skipped.
struct Scatter {
  std::byte* to = nullptr;
  uint64_t bytes = 0;
};

// One contiguous range of a file, of any size and alignment; the engine splits,
// aligns and bounces as needed.
struct ReadRequest {
  IoFile file;
  uint64_t offset = 0;
  std::vector<Scatter> into;  // Consecutive; their sum is the range's length.
};

// `from` is 4 KiB aligned in address, size and file offset.
struct WriteRequest {
  IoFile file;
  uint64_t offset = 0;
  std::span<const std::byte> from;
  bool sync = false;  // fdatasync after the bytes are written.
};

struct IoInfo {
  std::string engine;  // "io_uring", "threads".
  bool registered_buffers = false;
  std::vector<std::string> fallbacks;  // Unavailable features, and why.
};

// Asynchronous reads and writes, many in flight, oldest first.
//
// Threads:  Read and Write from any thread; they never block on the disk.
//           `done` is called once, on an engine thread, and must not block.
// Bounds:   requests queue without limit; their memory is the caller's pool
//           extents, which are bounded.
class IoEngine {
 public:
  using Done = absl::AnyInvocable<void(absl::Status)>;

  virtual ~IoEngine() = default;  // Waits for submitted requests.

  // DataLoss: the file ends early, or the disk failed. Other codes follow
  // errno. After an error, memory in `into` may be partly written.
  virtual void Read(ReadRequest request, Done done) = 0;
  virtual void Write(WriteRequest request, Done done) = 0;
  virtual IoInfo info() const = 0;
};

}  // namespace hoistd

#endif  // HOIST_DAEMON_TYPES_IO_ENGINE_H_
