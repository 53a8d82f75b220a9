// What core and mover need of file I/O. Implemented by daemon/io.
#ifndef HOIST_DAEMON_TERMS_IO_ENGINE_H_
#define HOIST_DAEMON_TERMS_IO_ENGINE_H_

#include <cstddef>
#include <cstdint>
#include <memory>
#include <span>
#include <string>
#include <vector>

#include "absl/functional/any_invocable.h"
#include "absl/status/status.h"

namespace hoistd {

// An open file. `direct_fd` is another description of the same file with
// O_DIRECT, or -1 where buffered I/O is to be used; the engine may then need
// bounce memory, since image offsets are not file offsets.
struct IoFile {
  int fd = -1;         // Borrowed.
  int direct_fd = -1;  // Borrowed.
  uint64_t bytes = 0;  // Size when it was opened.
};

// Where the next bytes of a range go. `to` null: they are skipped.
struct Scatter {
  std::byte* to = nullptr;
  uint64_t bytes = 0;
};

// One contiguous range of a file. Ranges may have any size and alignment; the
// engine splits, aligns and bounces as its way of reading needs.
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
  std::vector<std::string> fallbacks;  // What was not to be had, and why.
};

// Asynchronous reads and writes, many in flight, oldest first.
//
// Threads:  Submit from any thread; it never blocks on the disk. `done` is
//           called once, from an engine thread, and must not block.
// Bounds:   requests queue without limit here; their memory is the caller's
//           pool extents, which are bounded.
class IoEngine {
 public:
  using Done = absl::AnyInvocable<void(absl::Status)>;

  virtual ~IoEngine() = default;  // Waits for what was submitted.

  // DataLoss: the file ends early, or the disk failed. The other codes as
  // errno says. Memory in `into` may be partly written after an error.
  virtual void Read(ReadRequest request, Done done) = 0;
  virtual void Write(WriteRequest request, Done done) = 0;
  virtual IoInfo info() const = 0;
};

}  // namespace hoistd

#endif  // HOIST_DAEMON_TERMS_IO_ENGINE_H_
