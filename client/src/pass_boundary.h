// A place between passes where work on streams can be held, while pieces of
// what it reads change places.
#ifndef HOIST_CLIENT_SRC_PASS_BOUNDARY_H_
#define HOIST_CLIENT_SRC_PASS_BOUNDARY_H_

#include <atomic>
#include <chrono>
#include <memory>

#include "client/src/stream_order.h"
#include "hoist/shared/lane_layout.h"
#include "hoist/shared/mapping.h"
#include "hoist/shared/status.h"

namespace hoist {

// A stream that comes to the boundary says so, goes on if it may, and says that
// it has gone. Whoever holds forbids first, then sees that nobody stands there,
// and only then somebody who does: that one came after, and stays until it is
// let go. Who stands there at the first look may be on its way already, and is
// let go. (A GPU's read of `pass` does not overtake its write of `at`, as PCIe
// orders them.) So graphs have the boundary as they have kernels, nothing moves
// but where a stream stands still for it, and a pass that fails has nothing to
// undo.
//
// Threads:  Put from any, for one stream at a time; Hold and LetGo from one.
// Owns:     the words. Borrows `order`.
class PassBoundary {
 public:
  static Result<std::unique_ptr<PassBoundary>> Create(StreamOrder* order);
  PassBoundary(const PassBoundary&) = delete;
  PassBoundary& operator=(const PassBoundary&) = delete;
  // No stream is there, or comes.
  ~PassBoundary();

  // What is put on the stream from now on runs once it may pass.
  Status Put(cuda::Stream stream);

  // True: a stream stands there until LetGo. False: none came in that time, or
  // `cancelled`; whoever comes passes.
  bool Hold(std::chrono::milliseconds limit,
            const std::atomic<bool>& cancelled);
  void LetGo();

 private:
  struct Words {
    alignas(64) lane::Word at{0};  // Somebody stands there.
    alignas(64) lane::Word pass{1};
  };

  PassBoundary(Mapping memory, StreamOrder* order);

  Mapping memory_;
  Words* const words_;
  StreamOrder* const order_;
};

}  // namespace hoist

#endif  // HOIST_CLIENT_SRC_PASS_BOUNDARY_H_
